package sleeptest

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed testdata
var sources embed.FS

// DirEnv names the directory where hack/sleepers.sh has unpacked programs that are not installed.
const DirEnv = "LONGSHORE_SLEEPERS_DIR"

// Program is an ordinary program that has memory with content and answers requests.
type Program struct {
	Name string
	argv func(l *Launch) ([]string, error)
	dial func(ctx context.Context, addr string) (Client, error)
	fill func(ctx context.Context, c Client, mib int) error // nil: it has its memory from its start
}

// Launch describes one start of a program.
type Launch struct {
	Self string // the path of a program that calls Main
	Dir  string // for files of the program
	Addr string // where it listens
	MiB  int    // its memory
}

// Client is one connection to a program. It is never replaced by another.
type Client interface {
	One(ctx context.Context) error           // a small request
	Sum(ctx context.Context) (string, error) // a digest of the content
	Close() error
}

// ErrMissing is the error of Argv for a program that is not installed.
var ErrMissing = errors.New("not installed")

// Programs returns the programs.
func Programs() []Program {
	return []Program{
		{Name: "python", argv: python, dial: dialHTTP("/one", "/sum")},
		{Name: "node", argv: node, dial: dialHTTP("/one", "/sum")},
		{Name: "java", argv: java, dial: dialHTTP("/one", "/sum")},
		{Name: "go", argv: goProgram, dial: dialHTTP("/"+One, "/"+Sum)},
		{Name: "postgresql", argv: postgresql, dial: dialPostgres, fill: fillPostgres},
		{Name: "redis", argv: redis, dial: dialRedis, fill: fillRedis},
		{Name: "nginx", argv: nginx, dial: dialHTTP(nginxPaths()...)},
	}
}

// Argv returns the command of a start, and writes the files that it needs.
func (p Program) Argv(l Launch) ([]string, error) {
	argv, err := p.argv(&l)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	return argv, nil
}

// Dial connects to a program that has its content.
func (p Program) Dial(ctx context.Context, addr string) (Client, error) {
	c, err := p.dial(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	return c, nil
}

// Connect connects to a program, and gives it its content.
func (p Program) Connect(ctx context.Context, addr string, mib int) (Client, error) {
	c, err := p.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if err = c.One(ctx); err == nil && p.fill != nil {
		err = p.fill(ctx, c, mib)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", p.Name, err), c.Close())
	}
	return c, nil
}

// look returns the command of a program, of the machine or of the directory of DirEnv. The command has its libraries.
func look(name string) ([]string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return []string{path}, nil
	}
	root := os.Getenv(DirEnv)
	for _, dir := range []string{"usr/bin", "usr/sbin"} {
		path := filepath.Join(root, dir, name)
		if _, err := os.Stat(path); err == nil && root != "" {
			return []string{"/usr/bin/env", "LD_LIBRARY_PATH=" + root + "/usr/lib/x86_64-linux-gnu", path}, nil
		}
	}
	return nil, ErrMissing
}

// source writes a file of testdata, and returns its path.
func (l *Launch) source(name string) (string, error) {
	b, err := sources.ReadFile("testdata/" + name)
	if err != nil {
		return "", err
	}
	return l.write(name, string(b))
}

func (l *Launch) write(name, text string) (string, error) {
	path := filepath.Join(l.Dir, name)
	return path, os.WriteFile(path, []byte(text), 0o644)
}

func python(l *Launch) ([]string, error) {
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		return nil, ErrMissing
	}
	script, err := l.source("server.py")
	return []string{"/usr/bin/python3", script, l.Addr, fmt.Sprint(l.MiB)}, err
}

func node(l *Launch) ([]string, error) {
	argv, err := look("node")
	if err != nil {
		return nil, err
	}
	script, err := l.source("server.js")
	return append(argv, script, l.Addr, fmt.Sprint(l.MiB)), err
}

func java(l *Launch) ([]string, error) {
	argv, err := look("java")
	if err != nil {
		return nil, err
	}
	script, err := l.source("Server.java")
	return append(argv, fmt.Sprintf("-Xmx%dm", 256+2*l.MiB), "-Dsun.net.httpserver.nodelay=true", script, l.Addr, fmt.Sprint(l.MiB)), err
}

func goProgram(l *Launch) ([]string, error) {
	return []string{l.Self, WorkArg, l.Addr, fmt.Sprint(l.MiB)}, nil
}

// nobody is the user and group of a server that refuses to run as root.
const nobody = 65534

func postgresql(l *Launch) ([]string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		return nil, ErrMissing
	}
	bin := filepath.Dir(slices.Max(found))
	home := filepath.Join(l.Dir, "postgresql")
	if err := errors.Join(os.Mkdir(home, 0o700), os.Chown(home, nobody, nobody)); err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(l.Addr)
	if err != nil {
		return nil, err
	}
	as := fmt.Sprintf("exec /usr/bin/setpriv --reuid=%d --regid=%d --clear-groups", nobody, nobody)
	script := fmt.Sprintf("(%[1]s %[2]s/initdb -D %[3]s/data -U user -A trust --no-locale -E UTF8 -N) >&2 && echo 'host all all 0.0.0.0/0 trust' >>%[3]s/data/pg_hba.conf && %[1]s %[2]s/postgres -D %[3]s/data -h %[4]s -p %[5]s -k %[3]s -F", as, bin, home, host, port)
	return []string{"/bin/sh", "-c", script}, nil
}

func redis(l *Launch) ([]string, error) {
	argv, err := look("redis-server")
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(l.Addr)
	return append(argv, "--bind", host, "--port", port, "--save", "", "--protected-mode", "no", "--enable-debug-command", "yes", "--dir", l.Dir), err
}

// nginxTexts is how many texts nginx has in its memory. Each has nginxText bytes.
const (
	nginxTexts = 256
	nginxText  = 3000
)

func nginxPaths() (paths []string) {
	for i := range nginxTexts {
		paths = append(paths, fmt.Sprintf("/%d", i))
	}
	return paths
}

// nginx has most of its memory for connections: some 400 bytes for each.
func nginx(l *Launch) ([]string, error) {
	argv, err := look("nginx")
	if err != nil {
		return nil, err
	}
	var texts strings.Builder
	for i, path := range nginxPaths() {
		fmt.Fprintf(&texts, "location = %s { return 200 %q; }\n", path, strings.Repeat(fmt.Sprintf("text %d ", i*i), nginxText/16))
	}
	config, err := l.write("nginx.conf", fmt.Sprintf("user root root;\ndaemon off;\nworker_processes 1;\npid %[1]s/nginx.pid;\nerror_log stderr;\nevents { worker_connections %[2]d; }\nhttp {\naccess_log off;\nkeepalive_timeout 1d;\nkeepalive_requests 1000000000;\nclient_body_temp_path %[1]s/body;\nproxy_temp_path %[1]s/proxy;\nfastcgi_temp_path %[1]s/fastcgi;\nuwsgi_temp_path %[1]s/uwsgi;\nscgi_temp_path %[1]s/scgi;\nserver {\nlisten %[3]s;\n%[4]s}\n}\n", l.Dir, l.MiB<<20/400, l.Addr, texts.String()))
	return append(argv, "-p", l.Dir, "-c", config, "-e", "stderr"), err
}
