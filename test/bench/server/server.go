// Package server runs a CRI server for the bench: Longshore's own agent, or
// containerd or CRI-O from programs that the caller built.
//
// Each gets the same images, directories of its own, with its state in memory as on a real node,
// and a configuration with only the changes that this machine demands. It must not know the
// measurements. Start at New and at Server.
package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/longshore/longshore/test/bench/machine"
)

// The servers there are.
const (
	Longshore     = "longshore"
	LongshoreCrun = "longshore+crun" // its runtime is crun
	Containerd    = "containerd"
	CRIO          = "cri-o"
)

// Options are the parameters of a server.
type Options struct {
	Dir    string // for its files on disk
	Bin    string // directory of longshore and longshore-keeper
	Config string // more TOML for our own agent
	Images Images
	Peers  Peers
}

// Peers are the paths of programs that are not ours; "" is none.
type Peers struct {
	Containerd string // its shim is beside it
	CRIO       string // pinns is beside it
	Conmon     string
	Crun       string
	CNI        string // directory of the CNI plugins
}

// PeersOf reads them from the environment: CONTAINERD, CRIO, CONMON, CRUN and CNI_BIN. Other
// programs of peers are searched at Debian's paths.
func PeersOf(getenv func(string) string) Peers {
	p := Peers{Containerd: getenv("CONTAINERD"), CRIO: getenv("CRIO"), Conmon: getenv("CONMON"), Crun: getenv("CRUN"), CNI: getenv("CNI_BIN")}
	for _, needed := range []struct {
		path *string
		name string
	}{{&p.Conmon, "conmon"}, {&p.Crun, "crun"}} {
		if *needed.path == "" {
			*needed.path, _ = exec.LookPath(needed.name)
		}
	}
	for _, dir := range []string{"/usr/lib/cni", "/opt/cni/bin"} {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); p.CNI == "" && err == nil {
			p.CNI = dir
		}
	}
	return p
}

// Any reports whether there is a server to compare with.
func (p Peers) Any() bool { return p.Containerd != "" || p.CRIO != "" }

// Names are the servers that can run with p, ours first.
func (p Peers) Names() []string {
	names := []string{Longshore}
	if p.Containerd != "" {
		names = append(names, Containerd)
	}
	if p.CRIO != "" {
		names = append(names, CRIO)
	}
	if p.Crun != "" {
		names = append(names, LongshoreCrun)
	}
	return names
}

// Server is one server, which runs from Start to Stop.
type Server struct {
	Name    string
	Socket  string
	State   string // directory in memory
	Bin     string // of our own agent; "" is a peer
	Account *machine.Account

	config string // path, of our own agent
	base   string // the configuration before the first call of Vary

	log  string // path
	argv []string
	env  []string
	cmd  *exec.Cmd
}

// New prepares a server on a machine of its own.
func New(name string, o Options) (_ *Server, err error) {
	s := &Server{Name: name, State: "/run/bench", log: filepath.Join(o.Dir, "log"), env: os.Environ()}
	if err := os.MkdirAll(s.State, 0o700); err != nil {
		return nil, err
	}
	if s.Account, err = machine.NewAccount(); err != nil {
		return nil, err
	}
	prepare, ok := map[string]func(Options) error{Longshore: s.longshore, LongshoreCrun: s.longshoreCrun, Containerd: s.containerd, CRIO: s.crio}[name]
	if !ok {
		return nil, fmt.Errorf("no server is called %q", name)
	}
	return s, prepare(o)
}

// Start starts the program, without waiting until it serves.
func (s *Server) Start(ctx context.Context) error {
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	argv := s.Account.Command(s.argv...)
	s.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	s.cmd.Stdout, s.cmd.Stderr, s.cmd.Env = log, log, s.env
	return s.cmd.Start()
}

// Restart kills the server and starts it again, without waiting for it.
func (s *Server) Restart(ctx context.Context) error {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	return s.Start(ctx)
}

// Extend adds sections to our own agent's configuration and starts it again, without
// waiting for it.
func (s *Server) Extend(ctx context.Context, sections string) error {
	text, err := os.ReadFile(s.config)
	if err != nil {
		return err
	}
	if err := write(s.config, string(text)+"\n"+sections); err != nil {
		return err
	}
	return s.Restart(ctx)
}

// Vary starts our own agent again with its first configuration and these sections, without waiting for it.
func (s *Server) Vary(ctx context.Context, sections string) error {
	if s.base == "" {
		text, err := os.ReadFile(s.config)
		if err != nil {
			return err
		}
		s.base = string(text)
	}
	if err := write(s.config, s.base+"\n"+sections); err != nil {
		return err
	}
	return s.Restart(ctx)
}

// Stop asks the server to end and waits for that. Its processes end with the
// machine in any case.
func (s *Server) Stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
}

// Log returns the end of the server's log.
func (s *Server) Log() string {
	b, _ := os.ReadFile(s.log)
	return string(b[max(0, len(b)-4096):])
}

// setenv replaces variables of the server's environment.
func (s *Server) setenv(vars ...string) {
	for _, v := range vars {
		name := v[:slices.Index([]byte(v), '=')+1]
		s.env = slices.DeleteFunc(s.env, func(e string) bool { return len(e) >= len(name) && e[:len(name)] == name })
		s.env = append(s.env, v)
	}
}

func write(path, text string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600))
}
