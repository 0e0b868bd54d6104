# what: git daemon: clone, push, which has its socket as standard input
# needs: git:git /usr/lib/git-core/git-daemon:git

prepare() {
    git init -q --bare repository.git
    git init -q work
    payload work/file 4000000
    split -b 20000 work/file work/part
    git -C work add .
    git -C work -c user.name=a -c user.email=a -c commit.gpgsign=false commit -q -m one --date='2000-01-01T00:00:00Z'
    git -C work push -q "$HERE/repository.git" HEAD:refs/heads/main
}

server() {
    exec git daemon --reuseaddr --listen=127.0.0.1 --port="$PORT" --base-path="$HERE" --export-all --enable=receive-pack
}

client() {
    git clone -q -b main "git://127.0.0.1:$PORT/repository.git" copy
    cat copy/part* | cksum
    echo more >copy/more
    git -C copy add more
    git -C copy -c user.name=a -c user.email=a commit -q -m two
    git -C copy push -q origin HEAD:refs/heads/two
    git --git-dir=repository.git log --format=%s two
}
