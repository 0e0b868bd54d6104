# what: dovecot: IMAP, 180 messages fetched
# needs: dovecot:dovecot-core /usr/lib/dovecot/imap:dovecot-imapd curl:curl
# user: root

prepare() {
    local message
    mkdir -p mail/{cur,new,tmp}
    for message in {1..180}; do
        { printf 'Subject: %d\n\n' "$message"; seq 1 $((message * 20)); } >"mail/cur/$message:2,S"
    done
    chmod 755 "$HERE"
    chown -R nobody: mail
    echo 'user:{PLAIN}word' >users
    chmod 644 users
    cat >dovecot.conf <<END
base_dir = $HERE/run
state_dir = $HERE/state
log_path = $HERE/log
protocols = imap
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
mail_location = maildir:$HERE/mail
mail_uid = nobody
mail_gid = $(id -gn nobody)
first_valid_uid = 1
service imap-login {
    inet_listener imap {
        port = $PORT
    }
    inet_listener imaps {
        port = 0
    }
}
passdb {
    driver = passwd-file
    args = $HERE/users
}
userdb {
    driver = static
    args = uid=nobody gid=$(id -gn nobody) home=$HERE/mail
}
END
}

server() {
    exec dovecot -F -c dovecot.conf
}

client() {
    curl -sS --user user:word "imap://127.0.0.1:$PORT/INBOX;MAILINDEX=[1-180]" -o 'message#1'
    cat message* | cksum
}
