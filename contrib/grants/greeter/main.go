// Command greeter answers HTTP with a greeting. It holds what its document grants: a listener, its log, and what tells it to stop.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

type descriptor struct {
	FD uintptr `json:"fd"`
}

func main() {
	var arg struct {
		Greeting          string
		Listen, Log, Stop *descriptor
	}
	if err := json.NewDecoder(os.NewFile(3, "argument")).Decode(&arg); err != nil {
		fail(err)
	}
	if arg.Listen == nil {
		_, err := net.Listen("tcp", ":8080") //nolint:gosec // which it may not: this is to show how that looks
		fail(fmt.Errorf("no listener was granted, and so: %w", err))
	}
	l, err := net.FileListener(os.NewFile(arg.Listen.FD, "listen"))
	if err != nil {
		fail(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, arg.Greeting) })}
	if arg.Stop != nil {
		go func() {
			_, _ = io.Copy(io.Discard, os.NewFile(arg.Stop.FD, "stop")) // its end is the request
			_ = s.Shutdown(context.Background())
		}()
	}
	if arg.Log != nil {
		_, _ = fmt.Fprintln(os.NewFile(arg.Log.FD, "log"), "serving")
	}
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
