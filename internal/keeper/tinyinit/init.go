// Package tinyinit is the smallest init for a container: it runs one program, passes
// signals on to it, reaps the processes it inherits, and exits as the program did.
// Without a program it holds a shared pid namespace until it gets a signal to end.
//
// It must not know the keeper. Start reading at Main.
package tinyinit

import (
	"errors"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// Main runs args and returns the exit status: that of the program, 128 plus the signal
// that killed it, 127 if the program does not exist, or 126 if it cannot be executed.
func Main(args []string) int {
	signals := make(chan os.Signal, 64)
	signal.Notify(signals)
	main := 0
	if len(args) > 0 {
		path, err := find(args[0])
		if err == nil {
			main, err = syscall.ForkExec(path, args, &syscall.ProcAttr{
				Env: syscall.Environ(), Files: []uintptr{0, 1, 2}, Sys: foreground(),
			})
		}
		if err != nil {
			_, _ = unix.Write(2, []byte("init: exec "+args[0]+": "+err.Error()+"\n"))
			if errors.Is(err, unix.ENOENT) {
				return 127
			}
			return 126
		}
	}
	for got := range signals {
		sig, ok := got.(syscall.Signal)
		switch {
		case !ok || sig == unix.SIGURG: // SIGURG belongs to the Go runtime
		case sig == unix.SIGCHLD:
			if status, ended := reap(main); ended {
				return status
			}
		case main != 0:
			_ = unix.Kill(main, sig)
		case sig == unix.SIGTERM || sig == unix.SIGINT:
			return 0
		}
	}
	return 0
}

// foreground gives the program its own process group and makes that the terminal's
// foreground group, if there is a terminal, so that the terminal's signals reach the
// program once.
func foreground() *syscall.SysProcAttr {
	if _, err := unix.IoctlGetTermios(0, unix.TCGETS); err != nil {
		return &syscall.SysProcAttr{Setpgid: true}
	}
	return &syscall.SysProcAttr{Setpgid: true, Foreground: true, Ctty: 0}
}

// reap reaps all ended children, and reports whether the program is one of them.
func reap(main int) (status int, ended bool) {
	for {
		var w unix.WaitStatus
		pid, err := unix.Wait4(-1, &w, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return status, ended
		}
		if main != 0 && pid == main {
			ended = true
			if status = w.ExitStatus(); w.Signaled() {
				status = 128 + int(w.Signal())
			}
		}
	}
}

// find looks a program up in PATH as a shell does.
func find(name string) (string, error) {
	for i := range len(name) {
		if name[i] == '/' {
			return name, nil
		}
	}
	path, _ := syscall.Getenv("PATH")
	var failure error = unix.ENOENT
	for len(path) > 0 {
		n := 0
		for n < len(path) && path[n] != ':' {
			n++
		}
		dir := path[:n]
		if dir == "" {
			dir = "."
		}
		full := dir + "/" + name
		var st unix.Stat_t
		if err := unix.Stat(full, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			if unix.Access(full, unix.X_OK) == nil {
				return full, nil
			}
			failure = unix.EACCES
		}
		if n == len(path) {
			break
		}
		path = path[n+1:]
	}
	return "", failure
}
