// Package unitfile reads and writes the format of systemd's unit files: sections of assignments, and values that are lists
// of words with quotes and escapes. Start reading at parse.go.
package unitfile
