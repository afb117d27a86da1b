// Command granted is a static program that holds what its argument names: it serves HTTP on a
// listener that it was given, and says what it can do beside that.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

type descriptor struct {
	FD int `json:"fd"`
}

type argument struct {
	Log, Data, Listen *descriptor
	Greeting          string
}

func main() {
	var arg argument
	if err := json.NewDecoder(os.NewFile(3, "argdata")).Decode(&arg); err != nil {
		fail("argument", err)
	}
	if arg.Log != nil {
		_, _ = fmt.Fprintln(os.NewFile(uintptr(arg.Log.FD), "log"), "logged by a grant")
	}
	if arg.Listen == nil {
		_, err := net.Listen("tcp", ":8080")
		fail("listen", err)
	}
	l, err := net.FileListener(os.NewFile(uintptr(arg.Listen.FD), "listen"))
	if err != nil {
		fail("listener", err)
	}
	http.HandleFunc("/hello", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, arg.Greeting) })
	http.HandleFunc("/environment", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Join(os.Environ(), " "))
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

func fail(what string, err error) {
	fmt.Println(what+":", err)
	os.Exit(3)
}
