# How a line of train.txt or test.txt ("label TAB words") becomes a sample: a bag of word ids and a label.
from paddle.trainer.PyDataProvider2 import *

UNKNOWN = 0


def with_label(settings, dictionary, **kwargs):
    settings.dictionary = dictionary
    settings.input_types = {"word": sparse_binary_vector(len(dictionary)), "label": integer_value(2)}


def without_label(settings, dictionary, **kwargs):
    settings.dictionary = dictionary
    settings.input_types = {"word": sparse_binary_vector(len(dictionary))}


@provider(init_hook=with_label, cache=CacheType.CACHE_PASS_IN_MEM)
def read_labelled(settings, file_name):
    find = settings.dictionary.get
    with open(file_name) as lines:
        for line in lines:
            label, text = line.rstrip("\n").split("\t")
            yield {"word": [find(word, UNKNOWN) for word in text.split()], "label": int(label)}


@provider(init_hook=without_label, should_shuffle=False)
def read_unlabelled(settings, file_name):
    find = settings.dictionary.get
    with open(file_name) as lines:
        for line in lines:
            yield {"word": [find(word, UNKNOWN) for word in line.split()]}
