/* A first program in C. With wasi-libc:
 * clang --target=wasm32-wasi -O2 -o first.wasm first.c */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* grant copies the path of a thing that the argument grants: {"name":{"path":"/data"}}. */
static int grant(const char *argument, const char *name, char *path, size_t size) {
  char key[64];
  snprintf(key, sizeof key, "\"%s\":{\"path\":\"", name);
  const char *at = strstr(argument, key);
  if (at == NULL) return -1;
  at += strlen(key);
  const char *end = strchr(at, '"');
  if (end == NULL || (size_t)(end - at) >= size) return -1;
  memcpy(path, at, end - at);
  path[end - at] = 0;
  return 0;
}

int main(int argc, char **argv) {
  static char argument[65536], data[256], file[512];
  int fd = open("/argdata.json", O_RDONLY);
  if (fd < 0 || read(fd, argument, sizeof argument - 1) < 0) { perror("argument"); return 2; }
  close(fd);
  printf("first of %d: %s\n", argc, argv[argc - 1]);
  if (time(NULL) < 1700000000) puts("without the time");
  if (open("/etc/passwd", O_RDONLY) >= 0) puts("read what was not given");
  if (grant(argument, "data", data, sizeof data) < 0) { puts("no data"); return 3; }
  snprintf(file, sizeof file, "%s/written", data);
  fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || write(fd, "by a module", 11) != 11) { perror(file); return 4; }
  close(fd);
  return 5;
}
