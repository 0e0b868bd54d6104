/* Signed as Rust's compiler signs, with more code than is searched in every program, and with calls
 * past libc. Then waits for the end of its standard input. */
#include "past.h"

__asm__(".pushsection .comment, \"MS\", @progbits, 1\n"
        ".string \"rustc version of a test\"\n"
        ".popsection\n"
        ".pushsection .text\n"
        ".fill 17 << 20, 1, 0x90\n"
        ".popsection\n");

int main(void)
{
    return talk(move_byte_past_libc);
}
