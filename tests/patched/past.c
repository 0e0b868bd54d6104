/* A library (LIBRARY) whose calls go past libc, and a program that is linked with it and has a
 * connection with itself. */
#include "past.h"

#ifdef LIBRARY
int move_byte(int from, int to)
{
    return move_byte_past_libc(from, to);
}
#else
extern int move_byte(int, int);

int main(void)
{
    return talk(move_byte);
}
#endif
