//go:build amd64

// Command attempts is a program that tries to get more than its grants. It makes each attempt once
// and prints a line for each: its name, then "reached" or "refused", then details.
//
// Run as "attempts plain" it opens a granted program's files for itself, so that both make the same calls. Run as
// "attempts run" it stands for longshore-wasm: it makes the attempts of a module that has taken over its process. Run
// as "attempts names" it prints the attempts' names, and as "attempts tool" the program that attempts execute. Run as
// "attempts bomb NAME" it uses as much of a resource as it gets.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// attempt is one try to get at something. A nil error means that it was reached.
type attempt struct {
	class, name string
	try         func(*world) error
}

// world has the program's descriptors.
type world struct {
	data    int // a directory that it may write to
	read    int // a directory for reading only
	listen  int // a listening TCP socket
	program int // the former number of its own file, behind the grants
	worker  bool
	port    int
	// early has the state of the descriptors above the granted ones at the start, before the program
	// opened any.
	early [notGiven]error
}

// notGiven is how many descriptors above the granted ones are checked.
const notGiven = 8

// The descriptors of a granted program, in the order of its document.
const (
	dataFD, readFD, listenFD, programFD = 4, 5, 6, 7
	port                                = 8080
)

func main() {
	w := &world{data: dataFD, read: readFD, listen: listenFD, program: programFD, port: port}
	switch {
	case len(os.Args) > 1 && os.Args[1] == "names":
		for _, a := range all() {
			fmt.Println(a.class + "/" + a.name)
		}
		return
	case len(os.Args) > 1 && os.Args[1] == "tool":
		_, _ = os.Stdout.Write(exits)
		return
	case len(os.Args) > 2 && os.Args[1] == "bomb":
		fmt.Println("reached", bombs[os.Args[2]]())
		return
	case len(os.Args) > 1 && os.Args[1] == "plain":
		if err := w.open(); err != nil {
			fmt.Println("cannot open what is given:", err)
			os.Exit(1)
		}
	case len(os.Args) > 1 && os.Args[1] == "compile-child":
		os.Exit(1)
	default:
		if len(os.Args) > 1 && os.Args[1] == "run" {
			w.worker = true
			w.program++ // the module is before it
		}
		w.look()
		if err := w.check(); err != nil {
			fmt.Println("what was given is not there:", err)
			os.Exit(1)
		}
	}
	for _, a := range all() {
		if err := isolated(a, w); err != nil {
			fmt.Printf("%s/%s refused %v\n", a.class, a.name, err)
		} else {
			fmt.Printf("%s/%s reached\n", a.class, a.name)
		}
	}
	fmt.Println("done", len(all()))
}

// isolated makes an attempt on a thread of its own, which ends with it: its changes of the thread,
// such as entering a namespace, do not affect the next one.
func isolated(a attempt, w *world) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- a.try(w)
	}()
	return <-done
}

// open opens a granted program's files.
func (w *world) open() (err error) {
	for fd, path := range map[*int]string{&w.data: "/data", &w.read: "/read"} {
		if *fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if w.listen, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	if err := unix.Bind(w.listen, &unix.SockaddrInet6{Port: w.port}); err != nil {
		return err
	}
	if err := unix.Listen(w.listen, 8); err != nil {
		return err
	}
	if w.program, err = unix.Open("/proc/self/exe", unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	for i := range notGiven {
		if _, err := unix.FcntlInt(uintptr(programFD+i), unix.F_GETFD, 0); err == nil {
			continue
		}
		if err := unix.Dup3(w.program, programFD+i, unix.O_CLOEXEC); err != nil {
			return err
		}
	}
	w.look()
	return nil
}

func (w *world) look() {
	first := programFD
	if w.worker {
		first++
	}
	for i := range w.early {
		_, w.early[i] = unix.FcntlInt(uintptr(first+i), unix.F_GETFD, 0)
	}
}

// check proves that the program can use its grants: otherwise a refusal would prove nothing.
func (w *world) check() error {
	arg, err := io.ReadAll(os.NewFile(3, "argdata"))
	given := "4"
	if w.worker {
		given = "5"
		if err != nil || !strings.HasPrefix(string(arg), `{"module":7,`) {
			return fmt.Errorf("job %q, %w", arg, err)
		}
	} else if err != nil || string(arg) != `{"data":{"fd":4},"listen":{"fd":6},"read":{"fd":5}}` {
		return fmt.Errorf("argument %q, %w", arg, err)
	}
	if fd, err := unix.Openat(w.data, "kept", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600); err != nil {
		return fmt.Errorf("write below the writable directory: %w", err)
	} else if _, err := unix.Write(fd, []byte("kept")); err != nil {
		return err
	}
	fd, err := unix.Openat(w.read, "file", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("read below the readable directory: %w", err)
	}
	_ = unix.Close(fd)
	if _, err := unix.Getsockname(w.listen); err != nil {
		return fmt.Errorf("listening socket: %w", err)
	}
	if n := len(os.Environ()); n != 3 || os.Getenv("LISTEN_FDS") != given || os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return fmt.Errorf("environment %q", os.Environ())
	}
	return nil
}

// raw makes a system call and returns its error.
func raw(nr uintptr, args ...uintptr) error {
	_, err := call(nr, args...)
	return err
}

func call(nr uintptr, args ...uintptr) (uintptr, error) {
	var a [6]uintptr
	copy(a[:], args)
	r, _, errno := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno != 0 {
		return 0, errno
	}
	return r, nil
}

// opened closes a descriptor of an attempt.
func opened(fd int, err error) error {
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// rawOpened is opened for a raw call.
func rawOpened(nr uintptr, args ...uintptr) error {
	r, err := call(nr, args...)
	return opened(int(r), err)
}

var errNothing = errors.New("nothing was there")
