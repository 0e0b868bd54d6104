/* Executes the program in its first argument in every way there is, and some that fail. The output
 * is that of the programs it executes, and one line for each way. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static volatile int sigchlds;
static void count(int signal) { sigchlds += signal == SIGCHLD; }

/* Waits for the one child there is. */
static void finish(const char *way, pid_t child)
{
	int status = -1, rest;
	pid_t ended = waitpid(-1, &status, 0);
	rest = waitpid(-1, &rest, WNOHANG | __WALL);
	/* Its signal may be another thread's, which has not run yet. */
	for (int n = 0; n < 5000 && !sigchlds; n++)
		usleep(1000);
	printf("%s: %s, status %d, others %d, SIGCHLD %d\n", way, ended == child ? "ended" : "lost",
	       status, rest, sigchlds);
	fflush(stdout);
	sigchlds = 0;
}

static int tracer(void)
{
	static char text[1 << 14];
	int fd = open("/proc/self/status", O_RDONLY);
	ssize_t length = read(fd, text, sizeof text - 1);
	close(fd);
	text[length > 0 ? length : 0] = 0;
	char *at = strstr(text, "TracerPid:\t");
	return at ? atoi(at + 11) : -1;
}

/* Executes in this process, which goes on: the program cannot be executed. */
static void fail(const char *way, char *const *arguments)
{
	sigset_t before, after;
	sigprocmask(SIG_SETMASK, 0, &before);
	execve(arguments[0], arguments, environ);
	int error = errno;
	sigprocmask(SIG_SETMASK, 0, &after);
	int next = dup(1);
	printf("%s: errno %d, tracer %d, mask %d, next descriptor %d, SIGCHLD %d\n", way, error,
	       tracer(), memcmp(&before, &after, 8), next, sigchlds);
	fflush(stdout);
	close(next);
}

/* How many pages of memory this process has, used or not. */
static long pages(void)
{
	char text[64] = "";
	int fd = open("/proc/self/statm", O_RDONLY);
	read(fd, text, sizeof text - 1);
	close(fd);
	return atol(text);
}

static int begin(void *arguments)
{
	execve(*(char **)arguments, arguments, environ);
	_exit(1);
}

/* The end of a stack of so many bytes, below which nothing is mapped. */
static char *stack(size_t size)
{
	enum { GUARD = 1 << 16 };
	char *base = mmap(0, GUARD + size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(base + GUARD, size, PROT_READ | PROT_WRITE);
	return base + GUARD + size;
}

/* Executes with the smallest stack that a thread may have. */
static void *in_thread(void *arguments)
{
	char *none[] = {"/none", 0};
	pid_t child;
	if (!(child = fork()))
		begin(arguments);
	finish("fork of a thread", child);
	posix_spawn(&child, *(char **)arguments, 0, 0, arguments, environ);
	finish("posix_spawn of a thread", child);
	fail("none of a thread", none);
	return 0;
}

int main(int argc, char **argv)
{
	char *arguments[] = {argv[1], "one", "two", 0};
	char *script[] = {argv[2], 0};
	pid_t child;

	signal(SIGCHLD, count);
	if (!(child = fork()))
		begin(arguments);
	finish("fork", child);
	if (!(child = vfork())) {
		execve(arguments[0], arguments, environ);
		_exit(1);
	}
	finish("vfork", child);
	child = clone(begin, stack(1 << 12), CLONE_VM | CLONE_VFORK | SIGCHLD, arguments);
	finish("clone", child);
	posix_spawn(&child, arguments[0], 0, 0, arguments, environ);
	finish("posix_spawn", child);
	posix_spawnp(&child, arguments[0], 0, 0, arguments, environ);
	finish("posix_spawnp", child);
	posix_spawn(&child, script[0], 0, 0, script, environ);
	finish("a script", child);
	pthread_attr_t attributes;
	pthread_t thread;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 1 << 14);
	pthread_create(&thread, &attributes, in_thread, arguments);
	pthread_join(thread, 0);
	fflush(stdout);
	system(argv[1]);
	printf("system\n");
	fflush(stdout);

	/* It is written to: ETXTBSY. */
	int busy = open(argv[3], O_WRONLY | O_CLOEXEC);
	char *is_busy[] = {argv[3], 0};
	fail("busy", is_busy);
	fail("busy again", is_busy);
	int error = posix_spawn(&child, is_busy[0], 0, 0, is_busy, environ);
	printf("busy posix_spawn: error %d, tracer %d\n", error, tracer());
	close(busy);
	char *is_cut[] = {argv[4], 0};
	fail("cut short", is_cut);
	char *none[] = {"/none", 0};
	fail("none", none);

	/* Helpers give back what they have taken, some time after the program has begun. Those of
	 * the calls above may not have done so yet. */
	long before = pages();
	for (int n = 0; n < 20; n++) {
		posix_spawn(&child, arguments[0], 0, 0, arguments, environ);
		waitpid(child, 0, 0);
		if (!vfork()) {
			execve(arguments[0], arguments, environ);
			_exit(1);
		}
		wait(0);
		execve(is_cut[0], is_cut, environ);
	}
	for (int n = 0; n < 500 && pages() > before; n++)
		usleep(10000);
	printf("takes more pages: %d\n", pages() > before);
	fflush(stdout);

	/* The helper is told of those that it traces all the same. */
	signal(SIGCHLD, SIG_IGN);
	posix_spawn(&child, arguments[0], 0, 0, arguments, environ);
	wait(0);
	printf("ignored: errno %d\n", errno);
	fflush(stdout);
	execve(is_busy[0], is_busy, environ);
	return 1;
}
