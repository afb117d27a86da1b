// gcc -O2 -static -o greeter greeter.c
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char argument[65536];

// fd finds {"NAME":{"fd":N}}: the argument is canonical JSON, without spaces. A larger program has a parser.
static int fd(const char *name)
{
	char key[64];
	snprintf(key, sizeof key, "\"%s\":{\"fd\":", name);
	const char *at = strstr(argument, key);
	return at ? atoi(at + strlen(key)) : -1;
}

int main(void)
{
	char greeting[64] = "";
	if (read(3, argument, sizeof argument - 1) < 0)
		return 1;
	const char *at = strstr(argument, "\"greeting\":\"");
	if (at)
		sscanf(at, "\"greeting\":\"%63[^\"]", greeting);
	struct pollfd wait[2] = {{.fd = fd("listen"), .events = POLLIN}, {.fd = fd("stop"), .events = POLLIN}};
	if (wait[0].fd < 0) {
		int s = socket(AF_INET, SOCK_STREAM, 0); // which it may not: this is to show how that looks
		printf("no listener was granted, and so: %d, %s\n", s, strerror(errno));
		return 1;
	}
	dprintf(fd("log"), "serving\n");
	while (poll(wait, 2, -1) > 0 && wait[1].revents == 0) {
		char request[4096];
		int c = accept4(wait[0].fd, NULL, NULL, SOCK_CLOEXEC);
		if (c < 0)
			continue;
		if (read(c, request, sizeof request) > 0)
			dprintf(c, "HTTP/1.0 200 OK\r\n\r\n%s\n", greeting);
		close(c);
	}
	return 0;
}
