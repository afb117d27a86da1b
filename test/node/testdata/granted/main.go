// Command granted is a static program that holds what its argument names: it serves HTTP on a
// listener that it was given, greets on the board, and says what it can do beside that. Without a
// listener it looks at its secret, or waits until it is asked to stop.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

type descriptor struct {
	FD int `json:"fd"`
}

type argument struct {
	Log, Data, Site, Listen, Secret, Shutdown, Serve, Connect *descriptor
	Greeting                                                  string
	// Ask lets a program without a listener try to reach the board, too.
	Ask bool
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "argument" {
		text, err := io.ReadAll(os.NewFile(3, "argdata"))
		if fmt.Println(string(text)); err != nil {
			fail("argument", err)
		}
		return
	}
	var arg argument
	if err := json.NewDecoder(os.NewFile(3, "argdata")).Decode(&arg); err != nil {
		fail("argument", err)
	}
	if arg.Log != nil {
		_, _ = fmt.Fprintln(os.NewFile(uintptr(arg.Log.FD), "log"), "logged by a grant")
	}
	if arg.Secret != nil && arg.Listen == nil {
		text, err := io.ReadAll(os.NewFile(uintptr(arg.Secret.FD), "secret"))
		fmt.Printf("secret %q %v\n", text, err)
		_, err = unix.Pwrite(arg.Secret.FD, []byte("x"), 0)
		fmt.Println("write:", err)
		return
	}
	if arg.Shutdown != nil && arg.Listen == nil {
		fmt.Println("it runs")
		stop(arg)
	}
	handle := openBoard(arg)
	if arg.Listen == nil {
		if arg.Ask {
			fmt.Println(ask(handle, ""))
		}
		_, err := net.Listen("tcp", ":8080")
		fail("listen", err)
	}
	l, err := net.FileListener(os.NewFile(uintptr(arg.Listen.FD), "listen"))
	if err != nil {
		fail("listener", err)
	}
	if arg.Shutdown != nil {
		go stop(arg)
	}
	http.HandleFunc("/secret", func(w http.ResponseWriter, _ *http.Request) {
		if arg.Secret == nil {
			_, err := os.ReadFile("/secrets/key")
			_, _ = fmt.Fprint(w, err)
			return
		}
		text := make([]byte, 100)
		n, err := unix.Pread(arg.Secret.FD, text, 0)
		_, _ = fmt.Fprintf(w, "%q %v", text[:max(n, 0)], err)
	})
	http.HandleFunc("/hello", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, arg.Greeting) })
	http.HandleFunc("/board", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, ask(handle, r.URL.Query().Get("app")))
	})
	http.HandleFunc("/environment", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Join(os.Environ(), " "))
	})
	http.HandleFunc("/site", func(w http.ResponseWriter, _ *http.Request) {
		buf := make([]byte, 100)
		fd, err := unix.Openat(arg.Site.FD, "index", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			fail("site", err)
		}
		n, _ := unix.Read(fd, buf)
		_, err = unix.Openat(arg.Site.FD, "index", unix.O_WRONLY|unix.O_CLOEXEC, 0)
		_, _ = fmt.Fprintf(w, "%s, write: %v", buf[:n], err)
	})
	http.HandleFunc("/write", func(w http.ResponseWriter, r *http.Request) {
		if arg.Data == nil {
			_, _ = fmt.Fprint(w, os.WriteFile("/written", nil, 0o600))
			return
		}
		fd, err := unix.Openat(arg.Data.FD, "written", unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err == nil {
			_, err = unix.Write(fd, []byte(r.URL.Query().Get("text")))
			_ = unix.Close(fd)
		}
		_, _ = fmt.Fprint(w, err)
	})
	if err := http.Serve(l, nil); err != nil { //nolint:gosec // a test's program
		fail("serve", err)
	}
}

// stop ends the program when it is asked to.
func stop(arg argument) {
	n, err := unix.Read(arg.Shutdown.FD, make([]byte, 1))
	fmt.Println("asked to stop:", n, err)
	if arg.Greeting == "deaf" {
		time.Sleep(time.Hour) // there is nothing to wait for: it is killed when its grace is over
	}
	os.Exit(5)
}

func fail(what string, err error) {
	fmt.Println(what+":", err)
	os.Exit(3)
}
