/* Signed as Rust's compiler signs, with more code than is searched in every program, and with calls
 * past libc. Then waits for the end of its standard input. */
#include <stdio.h>

#include "both.h"
#include "past.h"

__asm__(".pushsection .comment, \"MS\", @progbits, 1\n"
        ".string \"rustc version of a test\"\n"
        ".popsection\n"
        ".pushsection .text\n"
        ".fill 17 << 20, 1, 0x90\n"
        ".popsection\n");

int main(void)
{
    char byte = 'x';
    connect_both();
    for (int n = 0; n < 20000; n++) {
        for (int end = 0; end < 2; end++)
            if (past_libc(SYS_sendto, ends[end], &byte) != 1 ||
                past_libc(SYS_recvfrom, ends[!end], &byte) != 1)
                abort();
        if (n % 1000 == 0)
            usleep(1000);
    }
    printf("done\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
