/* Bad pointers, and a filter for system calls, in a program that makes its system calls itself. It
 * talks to itself by TCP. Prints what must be equal with and without patches, then waits for the
 * end of its standard input. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "filter.h"

static int ends[2], handled;
static char *page;

static void meet(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1))
        abort();
    getsockname(listener, (struct sockaddr *)&address, &length);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(ends[0], (struct sockaddr *)&address, length))
        abort();
    ends[1] = accept(listener, 0, 0);
    close(listener);
}

static void talk(int rounds)
{
    char sent[64], received[64];
    for (int n = 0; n < rounds; n++) {
        memset(sent, n, sizeof sent);
        if (write(ends[n & 1], sent, 64) != 64 || read(ends[~n & 1], received, 64) != 64)
            abort();
        if (memcmp(sent, received, 64))
            abort();
    }
}

/* The page was protected: now it is there. */
static void mend(int signal)
{
    (void)signal;
    handled++;
    if (mprotect(page, 4096, PROT_READ | PROT_WRITE))
        abort();
}

static void refuse(long answer)
{
    if (answer != -1 || errno != EFAULT)
        abort();
}

/* The kernel's answers, whoever handles the program's own faults. */
static void give_bad_pointers(void)
{
    struct sigaction action = {.sa_handler = mend}, told;
    struct iovec parts[2] = {{&action, 8}, {(void *)8, 100}};
    char byte;
    page = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int n = 0; n < 3; n++) {
        refuse(write(ends[0], page, 100));
        refuse(send(ends[0], page, 5000, 0));
        refuse(writev(ends[0], parts, 2));
        refuse(writev(ends[0], (void *)8, 2));
        if (write(ends[0], "x", 1) != 1)
            abort();
        refuse(read(ends[1], page, 100));
        refuse(recvfrom(ends[1], (void *)-64, 100, MSG_PEEK, 0, 0));
        refuse(readv(ends[1], (void *)8, 2));
        if (read(ends[1], &byte, 1) != 1)
            abort();
        sigaction(SIGSEGV, &action, 0);
        page[0] = 1;
        sigaction(SIGSEGV, 0, &told);
        if (told.sa_handler != mend || handled != n + 1 || mprotect(page, 4096, PROT_NONE))
            abort();
    }
}

#define ALLOW(number) {JUMP_EQUAL, 0, 1, number}, {ANSWER, 0, 0, ALLOWED}

/* From here on any other call ends the program. */
static void confine(void)
{
    struct sock_filter filter[] = {
        {LOAD_WORD, 0, 0, 0}, /* the number of the call */
        ALLOW(SYS_read),
        ALLOW(SYS_write),
        ALLOW(SYS_writev),
        ALLOW(SYS_exit_group),
        {ANSWER, 0, 0, KILL_PROCESS},
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        abort();
}

int main(void)
{
    char byte, unread[6], line[] = "all is well\n";
    meet();
    talk(5000);
    give_bad_pointers();
    talk(1000);
    if (write(ends[0], "unread", 6) != 6)
        abort();
    confine();
    if (read(ends[1], unread, 6) != 6 || memcmp(unread, "unread", 6))
        abort();
    talk(1000);
    if (write(1, line, strlen(line)) < 0)
        abort();
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
