/* Says whether it has the library, and whether it has a child that it has not made: orphans of its
 * children become its own. With arguments it has a child execute them first. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char line[4096];
	int patched = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (argc > 1) {
		pid_t child = fork();
		if (!child) {
			execv(argv[1], argv + 1);
			_exit(1);
		}
		waitpid(child, NULL, 0);
	}
	while (maps && fgets(line, sizeof line, maps))
		patched |= strstr(line, "libtoehold.so") != NULL;
	pid_t child = waitpid(-1, NULL, WNOHANG);
	printf("library %d, process %d, %s\n", patched, getpid(),
	       child < 0 && errno == ECHILD ? "no children" : "a child");
	return 0;
}
