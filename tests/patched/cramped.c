/* A send by an instruction that cannot be patched: a branch leads to it, another branch follows it,
 * and no padding is near. */
#include "past.h"

__asm__(".text\n"
        ".fill 160, 1, 0x98\n" /* cwde: neither padding nor a branch */
        "cramped_send:\n"
        "mov $44, %eax\n"
        "xor %r10d, %r10d\n"
        "xor %r8d, %r8d\n"
        "xor %r9d, %r9d\n"
        "1: syscall\n"
        "jc 1b\n"
        "ret\n"
        ".fill 160, 1, 0x98\n");
extern long cramped_send(long fd, const char *bytes, long length);

static int move_byte(int from, int to)
{
    char byte = 'x';
    return cramped_send(from, &byte, 1) == 1 && recv(to, &byte, 1, 0) == 1;
}

int main(void)
{
    return talk(move_byte);
}
