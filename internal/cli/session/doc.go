// Package session connects the standard streams of a command, its signals and the size of its terminal with a process in a
// container, for run, attach and exec. The detach keys end a session without ending the process.
package session
