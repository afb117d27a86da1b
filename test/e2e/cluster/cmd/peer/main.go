// Command peer is the program of the checks' containers: it tells who asked it,
// and asks others.
//
//	peer serve [-http PORT] [-udp PORT]   answers "NAME ADDRESS" of itself and the client
//	peer ask [-n COUNT] URL                prints COUNT answers, each on a new connection
//	peer resolve NAME                      prints the addresses of a name
//	peer srv NAME                          prints target and port of SRV records
//	peer api                               asks the API server's version as the pod's service account
//	nc [-v] [-t] [-u] [-z] [-w SECONDS] HOST PORT   what Kubernetes' suite wants of nc
//	sh ARGUMENTS                           the shell that Kubernetes' suite wants, see shell
//
// NAME is $POD_NAME, else the host name. URL is http://HOST:PORT/PATH or
// udp://HOST:PORT. A question that is not answered within two seconds prints
// "error: ..." and makes ask fail.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// patience is how long ask waits for one answer.
const patience = 2 * time.Second

func main() {
	run := run
	if filepath.Base(os.Args[0]) == "sh" {
		fmt.Fprintln(os.Stderr, shell())
		os.Exit(127)
	}
	if filepath.Base(os.Args[0]) == "nc" {
		run = netcat
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: peer serve|ask")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	switch args[0] {
	case "serve":
		web, udp := flags.String("http", "8080", "port of HTTP"), flags.String("udp", "", "port of UDP")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return serve(*web, *udp)
	case "ask":
		n := flags.Int("n", 1, "how many times")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return ask(flags.Arg(0), *n)
	}
	return query(args)
}

// query is what needs no flags.
func query(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	switch {
	case len(args) == 2 && args[0] == "resolve":
		list, err := net.DefaultResolver.LookupHost(ctx, args[1])
		for _, a := range list {
			fmt.Println(a)
		}
		return err
	case len(args) == 2 && args[0] == "srv":
		_, list, err := net.DefaultResolver.LookupSRV(ctx, "", "", args[1])
		for _, r := range list {
			fmt.Println(r.Target, r.Port)
		}
		return err
	case len(args) == 1 && args[0] == "api":
		return version(ctx)
	}
	return fmt.Errorf("peer %s: no such command", args[0])
}

// version asks the API server that every pod is told of.
func version(ctx context.Context) error {
	const dir = "/var/run/secrets/kubernetes.io/serviceaccount/"
	ca, err := os.ReadFile(dir + "ca.crt")
	if err != nil {
		return err
	}
	token, err := os.ReadFile(dir + "token")
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	u := "https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")) + "/version"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+string(token))
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

func name() string {
	if n := os.Getenv("POD_NAME"); n != "" {
		return n
	}
	n, _ := os.Hostname()
	return n
}

func answer(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		host = remote
	}
	return name() + " " + host + "\n"
}

func serve(web, udp string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if udp != "" {
		conn, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", ":"+udp)
		if err != nil {
			return err
		}
		go echo(conn)
	}
	srv := &http.Server{Addr: ":" + web, ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, answer(r.RemoteAddr))
	})}
	failed := make(chan error, 1)
	go func() { failed <- srv.ListenAndServe() }()
	fmt.Println("serving")
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		fmt.Println("stopped")
		return srv.Close()
	}
}

// echo answers each datagram.
func echo(conn net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		_, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = conn.WriteTo([]byte(answer(from.String())), from)
	}
}

// netcat sends its input and prints what comes until the other end closes, or
// nothing has come for so long.
func netcat(args []string) error {
	flags := flag.NewFlagSet("nc", flag.ContinueOnError)
	seconds, udp, scan := flags.Int("w", 2, "patience"), flags.Bool("u", false, "UDP"), flags.Bool("z", false, "send nothing")
	verbose := flags.Bool("v", false, "tell of the connection")
	flags.Bool("t", false, "TCP, as without it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	network, wait := "tcp", time.Duration(*seconds)*time.Second
	if *udp {
		network = "udp"
	}
	to := net.JoinHostPort(flags.Arg(0), flags.Arg(1))
	conn, err := (&net.Dialer{Timeout: wait}).DialContext(context.Background(), network, to)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if *verbose {
		fmt.Fprintf(os.Stderr, "Connection to %s port [%s] succeeded!\n", to, network)
	}
	if *scan {
		return nil
	}
	go func() { _, _ = io.Copy(conn, os.Stdin) }()
	buf := make([]byte, 4096)
	for {
		if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return err
		}
		n, err := conn.Read(buf)
		if _, werr := os.Stdout.Write(buf[:n]); werr != nil {
			return werr
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		default:
			return err
		}
	}
}

func ask(target string, n int) error {
	u, err := url.Parse(target)
	if err != nil {
		return err
	}
	var failed error
	for range n {
		out, err := once(u)
		if err != nil {
			out, failed = "error: "+err.Error(), errors.New("not every question was answered")
		}
		fmt.Println(strings.TrimSpace(out))
	}
	return failed
}

func once(u *url.URL) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if u.Scheme == "udp" {
		return datagram(ctx, u.Host)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func datagram(ctx context.Context, host string) (string, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", host)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, "who?"); err != nil {
		return "", err
	}
	buf := make([]byte, 1500)
	n, err := conn.Read(buf)
	return string(buf[:n]), err
}

// identifier is a variable that each shell hands on to the programs that it starts.
var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)

// usesNc is a script that asks for nc.
var usesNc = regexp.MustCompile(`\bnc\b`)

// shell becomes busybox' shell, whose messages specs of the suite compare, or bash where
// Debian's busybox is not the suite's: it hides variables whose names are no identifiers,
// and takes its own nc, which has too few options. It returns why neither was possible.
func shell() error {
	program := "/bin/ash"
	if slices.ContainsFunc(os.Args, usesNc.MatchString) || slices.ContainsFunc(os.Environ(), func(v string) bool { return !identifier.MatchString(v) }) {
		program = "/usr/bin/bash"
	}
	return fmt.Errorf("%s: %w", program, syscall.Exec(program, os.Args, os.Environ()))
}
