/* A library (LIBRARY) whose calls go past libc, and a program that is linked with it and has a
 * connection with itself. Prints a line, then waits for the end of its standard input. */
#include <stdio.h>

#include "both.h"
#include "past.h"

#ifdef LIBRARY
int move_byte(int from, int to)
{
    char byte = 'x';
    return past_libc(SYS_sendto, from, &byte) == 1 && past_libc(SYS_recvfrom, to, &byte) == 1;
}
#else
extern int move_byte(int, int);

int main(void)
{
    char byte;
    connect_both();
    for (int n = 0; n < 20000; n++) {
        if (!move_byte(ends[0], ends[1]) || !move_byte(ends[1], ends[0]))
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
#endif
