#!/bin/bash
# What the data job of the original's Kubernetes tutorial runs: OUT_DIR gets the quick-start program and SPLIT_COUNT
# shards of reviews. May be killed and run again at any point. Shards that are there are left alone, whoever made them.
set -eu
: "${OUT_DIR:?OUT_DIR must name the directory to fill}"
: "${SPLIT_COUNT:=3}"
begun="$OUT_DIR/.get_data-has-begun"
mkdir -p "$OUT_DIR"
if [ -e "$begun" ] && [ ! -e "$OUT_DIR/shards.json" ]; then
    # A run before this one was killed while it split; the list of the shards comes last.
    for shard in "$OUT_DIR"/*/data "$OUT_DIR"/.unfinished-*; do
        case ${shard#"$OUT_DIR/"} in
            .unfinished-*) rm -rf "$shard" ;;
            *[!0-9]*/data) ;;
            *) rm -rf "${shard%/data}" ;;
        esac
    done
fi
if [ -d "$OUT_DIR/0/data" ] && [ -d "$OUT_DIR/quick_start" ]; then
    echo "$OUT_DIR holds $(ls -d "$OUT_DIR"/[0-9]*/data | wc -l) shards already"
    rm -f "$begun"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
/opt/bireme/bin/bireme demo --prepare "$work/demo" >/dev/null
if [ ! -d "$OUT_DIR/0/data" ]; then
    : >"$begun"
    /opt/bireme/bin/bireme data split "$work/demo/reviews" --shards "$SPLIT_COUNT" --out "$OUT_DIR"
fi
if [ ! -d "$OUT_DIR/quick_start" ]; then
    rm -rf "$OUT_DIR/.quick_start"
    cp -r "$work/demo/quick_start" "$OUT_DIR/.quick_start"
    mv -T "$OUT_DIR/.quick_start" "$OUT_DIR/quick_start"
fi
rm -f "$begun"
echo "ready: $OUT_DIR"
