// Command greeter answers HTTP with a greeting. It holds what its document grants: a listener, its log, and what tells it to stop.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
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
		log.Fatal(err)
	}
	if arg.Log != nil {
		log.SetOutput(os.NewFile(arg.Log.FD, "log"))
	}
	if arg.Listen == nil {
		_, err := net.Listen("tcp", ":8080") //nolint:gosec // which it may not: this is to show how that looks
		log.Fatal("no listener was granted, and so: ", err)
	}
	l, err := net.FileListener(os.NewFile(arg.Listen.FD, "listen"))
	if err != nil {
		log.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, arg.Greeting) })}
	if arg.Stop != nil {
		go func() {
			_, _ = io.Copy(io.Discard, os.NewFile(arg.Stop.FD, "stop")) // its end is the request
			_ = s.Shutdown(context.Background())
		}()
	}
	log.Print("serving")
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}
