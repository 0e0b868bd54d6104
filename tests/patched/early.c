/* Before it has a connection: confines itself by a filter that allows everything; or, with an
 * argument, has a thread of the kernel take requests of io_uring. Says a line and waits for the end
 * of its standard input. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int confine(void)
{
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {1, &allow};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

static int have_polled(void)
{
    struct io_uring_params parameters = {.flags = IORING_SETUP_SQPOLL};
    return syscall(SYS_io_uring_setup, 2, &parameters) < 0;
}

int main(int count, char **arguments)
{
    char byte;
    (void)arguments;
    if (count > 1 ? have_polled() : confine())
        return 1;
    puts("begun");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
