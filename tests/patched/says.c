/* Says whether the library is in it, whether anybody traces it, and its arguments. */

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char text[1 << 16];

static const char *read_file(const char *path)
{
	int fd = open(path, O_RDONLY);
	size_t length = 0;
	ssize_t got;

	while ((got = read(fd, text + length, sizeof text - 1 - length)) > 0)
		length += got;
	text[length] = 0;
	close(fd);
	return text;
}

int main(int argc, char **argv)
{
	int is_patched = strstr(read_file("/proc/self/maps"), "libtoehold.so") != 0;
	int is_traced = strstr(read_file("/proc/self/status"), "TracerPid:\t0\n") == 0;
	int descriptors = 0;

	for (int fd = 3; fd < 256; fd++)
		descriptors += fcntl(fd, F_GETFD) >= 0;
	printf("patched %d traced %d descriptors %d arguments %d\n", is_patched, is_traced, descriptors,
	       argc);
	fflush(stdout);
	for (int n = 1; n < argc; n++)
		if (!strcmp(argv[n], "wait"))
			getchar();
	return 0;
}
