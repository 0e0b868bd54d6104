# what: slapd: 3,000 entries searched whole and by pages, changes, a search that stays and is told of them; TCP and a Unix socket
# needs: slapd:slapd ldapsearch:ldap-utils

prepare() {
    mkdir db
    cat >slapd.conf <<END
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
moduleload syncprov
sizelimit unlimited
database mdb
maxsize 200000000
dbnosync
suffix "dc=x"
rootdn "cn=a,dc=x"
rootpw s
directory $HERE/db
overlay syncprov
END
    {
        printf 'dn: dc=x\nobjectClass: dcObject\nobjectClass: organization\no: x\ndc: x\n\n'
        local at
        for at in {1..3000}; do
            printf 'dn: cn=p%d,dc=x\nobjectClass: inetOrgPerson\ncn: p%d\nsn: s\ndescription: %0*d\n\n' "$at" "$at" $((at % 900)) "$at"
        done
    } >all.ldif
    slapadd -q -f slapd.conf -l all.ldif
}

server() {
    exec slapd -d 0 -f slapd.conf -h "ldap://127.0.0.1:$PORT ldapi://${HERE//\//%2f}%2fsocket"
}

client() {
    local server
    for server in "ldap://127.0.0.1:$PORT" "ldapi://${HERE//\//%2f}%2fsocket"; do
        local search=(ldapsearch -x -LLL -H "$server" -b dc=x) root=(-x -H "$server" -D "cn=a,dc=x" -w s)
        for _ in 1 2 3; do "${search[@]}" | cksum; done
        "${search[@]}" -E pr=100/noprompt | grep -v '^#' | cksum
        printf 'dn: cn=n%d,dc=x\nchangetype: add\nobjectClass: inetOrgPerson\ncn: n\nsn: s\n\n' {1..200} | ldapmodify "${root[@]}" | cksum
        : >told
        "${search[@]}" -E '!sync=rp' '(cn=n)' dn >told &
        local told=$!
        until grep -q '^dn: cn=n200,' told; do sleep 0.05; done
        printf 'cn=n%d,dc=x\n' {1..200} | ldapdelete "${root[@]}"
        until [ "$(grep -c '^dn: cn=n' told)" = 400 ]; do sleep 0.05; done
        kill "$told"
        grep '^dn: ' told | cksum
    done
}
