/* Executes itself again and again, and kills the process that patches the new program, at another
 * moment each time. Prints how many programs have not ended well, and ends when its standard input
 * does. KILLS says how many. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The span in which a helper lives, as a rule, and the distance of two moments in it. A moment is
 * counted from the first sight of the helper: on a busy host the program may begin late. */
#define SPAN_US 3000
#define STEP_US 7

static long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Calls through several sites; 0 when they have the kernel's answers. */
static int work(void)
{
    int ends[2], found;
    char bytes[8] = "";
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) || write(ends[0], "1234567", 8) != 8 ||
        read(ends[1], bytes, 8) != 8 || strcmp(bytes, "1234567"))
        return 1;
    found = dup(ends[0]);
    if (found < 0 || close(found) || close(ends[0]) || read(ends[1], bytes, 8) != 0)
        return 2;
    sigset_t mask;
    sigprocmask(SIG_SETMASK, 0, &mask);
    for (int signal = 1; signal < 32; signal++)
        if (sigismember(&mask, signal) != (signal == SIGUSR1))
            return 3;
    return 0;
}

/* Sends a signal to the children of a process, 0 for none; how many there are. */
static int signal_children(pid_t process, int signal)
{
    char path[64], text[256];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", process, process);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, text, sizeof text - 1);
    close(file);
    text[length < 0 ? 0 : length] = 0;
    for (char *word = strtok(text, " "); word; word = strtok(0, " "))
        count += kill(atoi(word), signal) == 0;
    return count;
}

static int has_ended(pid_t child)
{
    siginfo_t info = {0};
    return waitid(P_PID, child, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid;
}

int main(int count, char **arguments)
{
    int bad = 0, killed = 0, kills = atoi(getenv("KILLS") ?: "100");
    char byte;
    if (count > 1)
        return work();
    char *again[] = {arguments[0], "work", 0};
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    sigprocmask(SIG_SETMASK, &mask, 0);
    for (int n = 0; n < kills; n++) {
        int status = -1;
        pid_t child = fork();
        if (child == 0) {
            execv(getenv("PROGRAM"), again);
            _exit(9);
        }
        while (!signal_children(child, 0) && !has_ended(child))
            ;
        long moment = now_us() + n * STEP_US % SPAN_US;
        while (now_us() < moment)
            ;
        killed += signal_children(child, SIGKILL);
        waitpid(child, &status, 0);
        if (status) {
            bad++;
            fprintf(stderr, "status %x after %d us\n", status, n * STEP_US % SPAN_US);
        }
    }
    printf("%d of %d have not ended well\n", bad, kills);
    fflush(stdout);
    fprintf(stderr, "%d helpers were killed\n", killed);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
