# Sentiment of product reviews: word vectors, averaged, then a softmax (needs PaddlePaddle: see `bireme doctor`).
# The configuration language is PaddlePaddle's `trainer_config_helpers`; bireme brings its own.
from paddle.trainer_config_helpers import *

is_predict = get_config_arg("is_predict", bool, False)

# A word's id is its line in the dictionary; line 0 stands for all unknown words.
with open("data/dict.txt") as lines:
    dictionary = {line.split("\t")[0]: number for number, line in enumerate(lines)}

define_py_data_sources2(
    train_list=None if is_predict else "data/train.list",
    test_list="data/pred.list" if is_predict else "data/test.list",
    module="dataprovider_emb",
    obj="read_unlabelled" if is_predict else "read_labelled",
    args={"dictionary": dictionary},
)

settings(
    batch_size=1 if is_predict else 128,
    learning_rate=2e-3,
    learning_method=AdamOptimizer(),
)

words = data_layer(name="word", size=len(dictionary))
vectors = embedding_layer(input=words, size=128)
average = pooling_layer(input=vectors, pooling_type=AvgPooling())
sentiment = fc_layer(input=average, size=2, act=SoftmaxActivation())

if is_predict:
    outputs([maxid_layer(sentiment), sentiment])
else:
    outputs(classification_cost(input=sentiment, label=data_layer(name="label", size=2)))
