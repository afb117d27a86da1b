package servers

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// kills is how often the agent is killed while clients write, every second time together with the
// keeper; LONGSHORE_SERVERS_KILLS is another number.
const kills = 5

// shop is the node with the three servers.
type shop struct {
	*nodetest.Node
	t *testing.T
}

// TestServersOnOneNetwork has a web server, a cache and a database find each other by name, keep
// their data in volumes, survive deaths of the agent under load, and go away without a rest.
func TestServersOnOneNetwork(t *testing.T) {
	tree := os.Getenv("LONGSHORE_SERVERS_DIR")
	if tree == "" {
		t.Skip("LONGSHORE_SERVERS_DIR names no servers (make e2e-servers)")
	}
	roottest.Run(t, func(t *testing.T) {
		s := shop{nodetest.Start(t, nodetest.Options{}), t}
		s.images(filepath.Join(tree, "root"))
		// State that the node keeps after its first container is not left over.
		s.must("run", "--rm", "-v", "first:/first", "debian/tools", "true")
		s.must("volume", "rm", "first")
		s.must("prune")
		before, ran := s.Baseline(t).Lasting(), processes(t)

		s.must("network", "create", "shop")
		s.servers()
		s.find()
		written := s.survive()
		s.stopAndStart(written)
		s.replace(written)
		s.leave()
		left := ""
		t.Cleanup(func() {
			if left != "" {
				t.Log(left)
			}
		})
		nodetest.Eventually(t, "nothing of the servers is left", func() bool {
			left = s.Holdings(t).Lasting().Since(before)
			return left == ""
		})
		if left := slices.DeleteFunc(processes(t), func(p string) bool { return slices.Contains(ran, p) }); len(left) > 0 {
			t.Errorf("processes that are left: %q", left)
		}
		s.Check()
	})
}

// must runs a longshore command and returns its output.
func (s shop) must(args ...string) string {
	s.t.Helper()
	out, err := s.CLI(args...)
	if err != nil {
		s.t.Fatal(err, out)
	}
	return strings.TrimSpace(out)
}

// client runs a shell's line in a container of its own on the network.
func (s shop) client(line string) string {
	s.t.Helper()
	return s.must("run", "--rm", "--network", "shop", "debian/tools", "sh", "-c", line)
}

// processes names the programs that run in the test's pid namespace.
func processes(t *testing.T) []string {
	t.Helper()
	var names []string
	dirs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if line, err := os.ReadFile(d); err == nil && len(line) > 0 { // kernel threads and zombies have none
			names = append(names, string(line))
		}
	}
	return names
}

// images imports three images on one layer, and one for clients.
func (s shop) images(tree string) {
	s.t.Helper()
	layer := s.files(tree)
	bin, err := filepath.Glob(filepath.Join(tree, "usr/lib/postgresql/*/bin"))
	if err != nil || len(bin) != 1 {
		s.t.Fatalf("%s has no PostgreSQL: %v, %v", tree, bin, err)
	}
	env := []string{"PATH=" + strings.TrimPrefix(bin[0], tree) + ":/usr/bin:/usr/sbin"}
	health := func(test string) *core.HealthCheck {
		return &core.HealthCheck{Test: []string{"CMD-SHELL", test}, Interval: 500 * time.Millisecond, Timeout: 30 * time.Second, Retries: 60}
	}
	built := map[string]imagetest.Built{}
	for name, img := range map[string]imagetest.Image{
		"debian/postgres": {
			Config: ocispec.ImageConfig{
				User: "postgres", StopSignal: "SIGINT", Volumes: map[string]struct{}{"/var/lib/postgresql": {}}, ExposedPorts: map[string]struct{}{"5432/tcp": {}},
				Env: append(env, "PGDATA=/var/lib/postgresql/data"), Cmd: []string{"sh", "-c", postgres},
			},
			Health: health("pg_isready -q -h 127.0.0.1"),
		},
		"debian/redis": {
			Config: ocispec.ImageConfig{
				User: "redis", WorkingDir: "/var/lib/redis", Volumes: map[string]struct{}{"/var/lib/redis": {}}, ExposedPorts: map[string]struct{}{"6379/tcp": {}}, Env: env,
				Entrypoint: []string{"redis-server"}, Cmd: []string{"--appendonly", "yes", "--appendfsync", "always", "--protected-mode", "no"},
			},
			Health: health("redis-cli ping | grep -q PONG"),
		},
		"debian/nginx": {
			Config: ocispec.ImageConfig{
				StopSignal: "SIGQUIT", Volumes: map[string]struct{}{"/var/www/html": {}}, ExposedPorts: map[string]struct{}{"80/tcp": {}}, Env: env, Cmd: []string{"nginx"},
			},
			Health: health("curl -sSf http://127.0.0.1/ >/dev/null"),
		},
		"debian/tools": {Config: ocispec.ImageConfig{Env: env, Cmd: []string{"sh"}}},
	} {
		img.Layers, img.Compression = [][]imagetest.File{layer}, imagetest.None
		built["docker.io/"+name+":latest"] = img.Build()
	}
	archive := filepath.Join(s.Dir, "servers.tar")
	f, err := os.Create(archive)
	if err == nil {
		if err = imagetest.WriteOCI(f, built); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.must("import", archive)
	if err := os.Remove(archive); err != nil {
		s.t.Fatal(err)
	}
}

// files reads the tree of a root directory, and adds the configuration.
func (s shop) files(tree string) []imagetest.File {
	s.t.Helper()
	var files []imagetest.File
	err := filepath.WalkDir(tree, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == tree {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		f := imagetest.File{Name: strings.TrimPrefix(path, tree+"/"), Mode: info.Mode() &^ os.ModeType}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			f.UID, f.GID = int(st.Uid), int(st.Gid)
		}
		switch {
		case f.Name == "etc/nginx/nginx.conf":
			f.Body = []byte(nginx)
		case d.IsDir():
			f.Name += "/"
		case d.Type() == os.ModeSymlink:
			f.Link, err = os.Readlink(path)
		default:
			f.Body, err = os.ReadFile(path)
		}
		files = append(files, f)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	const www = 33
	return append(files, imagetest.File{Name: "var/www/html/", UID: www, GID: www}, imagetest.File{Name: "var/www/html/index.html", Body: []byte("from the image\n"), UID: www, GID: www})
}

// postgres makes a cluster in an empty volume, as images of databases do.
const postgres = `set -e
if [ ! -s $PGDATA/PG_VERSION ]; then
  initdb --no-locale -E UTF8 -A trust >/dev/null
  echo 'host all all all trust' >>$PGDATA/pg_hba.conf
fi
exec postgres -c listen_addresses='*' -c unix_socket_directories=/tmp -c jit=off`

// nginx stores the files of PUT requests, and forwards to the cache and the database, which it
// finds by name.
const nginx = `load_module modules/ngx_stream_module.so;
user www-data;
daemon off;
worker_processes 1;
error_log stderr;
pid /tmp/nginx.pid;
events {}
http {
  access_log off;
  client_body_temp_path /tmp/bodies;
  server { listen 80; root /var/www/html; location /notes/ { dav_methods PUT; create_full_put_path on; } }
}
stream {
  server { listen 6379; proxy_pass redis:6379; }
  server { listen 5432; proxy_pass postgres:5432; }
}
`

// healthy waits until servers pass their images' health checks.
func (s shop) healthy(names ...string) {
	s.t.Helper()
	for _, name := range names {
		nodetest.Eventually(s.t, name+" is healthy", func() bool { return s.must("inspect", "-f", "{{.State.Health.Status}}", name) == "healthy" })
	}
}

func (s shop) database() {
	s.must("run", "-d", "--name", "db", "--network", "shop", "--network-alias", "postgres", "-v", "data:/var/lib/postgresql", "-u", "postgres", "--shm-size", "128m", "debian/postgres")
}

func (s shop) cache() {
	s.must("run", "-d", "--name", "cache", "--network", "shop", "--network-alias", "redis", "-v", "memory:/var/lib/redis", "-u", "redis", "debian/redis")
}

func (s shop) servers() {
	s.t.Helper()
	s.database()
	s.cache()
	s.healthy("db", "cache")
	s.must("run", "-d", "--name", "web", "--network", "shop", "-p", "18080:80", "-v", "site:/var/www/html", "debian/nginx")
	s.healthy("web")
}

// find has each server found by the others and by clients, by name and by alias.
func (s shop) find() {
	s.t.Helper()
	for line, want := range map[string]string{
		"curl -sSf http://web/":                           "from the image",
		"redis-cli -h cache ping":                         "PONG",
		"redis-cli -h redis ping":                         "PONG",
		"redis-cli -h web ping":                           "PONG", // by the web server, which has found the cache
		"psql -h db -U postgres -qAtc 'select 6*7'":       "42",
		"psql -h postgres -U postgres -qAtc 'select 6*7'": "42",
		"psql -h web -U postgres -qAtc 'select 6*7'":      "42",
	} {
		if got := s.client(line); got != want {
			s.t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	// The database asks the web server, and the cache the database.
	s.client(`psql -h db -U postgres -qc "create table page(line text)" -c "copy page from program 'curl -sSf http://web/'" -c "create table notes(n int primary key)"`)
	if got := s.must("exec", "cache", "psql", "-h", "db", "-U", "postgres", "-qAtc", "select line from page"); got != "from the image" {
		s.t.Errorf("the database read %q of the web server", got)
	}
	if owner := s.must("exec", "db", "stat", "-c", "%U %a", "/var/lib/postgresql"); owner != "postgres 700" {
		s.t.Errorf("the database's volume: %s", owner)
	}
}

// writer is a client that writes a number after the other, and says which ones were acknowledged.
func (s shop) writer(name, line string) {
	s.t.Helper()
	s.must("run", "-d", "--name", name, "--network", "shop", "debian/tools", "sh", "-c", `n=0
trap 'enough=1' TERM
while [ ! "$enough" ]; do
  n=$((n+1))
  `+line+` && echo $n || { echo failed $n; exit 1; }
done`)
}

// says returns the answer of the cache to one command, asked for without the agent's help.
func (s shop) says(address, command string) string {
	s.t.Helper()
	conn, err := (&net.Dialer{Timeout: roottest.Patience()}).DialContext(s.t.Context(), "tcp", net.JoinHostPort(address, "6379"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		s.t.Fatal(err)
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(answer)
}

// page gets the web server's page by the port of the node.
func (s shop) page(address string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), roottest.Patience())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(address, "18080")+"/", http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		s.t.Error(err)
		return
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || string(body) != "from the image\n" {
		s.t.Errorf("%q, %v", body, err)
	}
}

// survive kills the agent while clients write, and returns how many writes each server has acknowledged.
func (s shop) survive() map[string]int {
	s.t.Helper()
	s.writer("to-db", `psql -h postgres -U postgres -qc "insert into notes values($n)"`)
	s.writer("to-cache", "redis-cli -h redis rpush notes $n >/dev/null")
	s.writer("to-web", "echo note $n | curl -sSf -T - http://web/notes/$n")
	defer func() {
		for _, name := range []string{"to-db", "to-cache", "to-web"} {
			if s.t.Failed() {
				said, err := s.CLI("logs", "-n", "3", name)
				s.t.Logf("%s said %q, %v", name, said, err)
			}
		}
	}()
	cache := s.must("inspect", "-f", "{{.NetworkSettings.Networks.shop.IPAddress}}", "cache")
	node := s.must("inspect", "-f", "{{.NetworkSettings.Networks.shop.Gateway}}", "cache")
	notes := func() int {
		n, err := strconv.Atoi(strings.TrimPrefix(s.says(cache, "LLEN notes"), ":"))
		if err != nil {
			s.t.Fatal(err)
		}
		return n
	}
	rounds := kills
	if n, err := strconv.Atoi(os.Getenv("LONGSHORE_SERVERS_KILLS")); err == nil {
		rounds = n
	}
	for round := range rounds {
		from := notes()
		nodetest.Eventually(s.t, "clients write", func() bool { return notes() >= from+10 })
		s.Kill()
		if round%2 == 1 {
			s.KillKeeper()
		}
		from = notes()
		nodetest.Eventually(s.t, "clients write without an agent", func() bool { return notes() >= from+10 })
		s.page(node)
		s.Up()
	}
	written := map[string]int{}
	for _, name := range []string{"db", "cache", "web"} {
		s.must("stop", "-t", "60", "to-"+name)
		code, said := s.must("wait", "to-"+name), strings.Fields(s.must("logs", "to-"+name))
		if code != "0" || len(said) == 0 || said[len(said)-1] != fmt.Sprint(len(said)) {
			s.t.Fatalf("the writer to %s ended with %s, and said %q at its end", name, code, said[max(0, len(said)-9):])
		}
		written[name] = len(said)
		s.must("rm", "to-"+name)
	}
	s.t.Logf("%d deaths of the agent; writes that were acknowledged, none failed: %v", rounds, written)
	s.has(written)
	return written
}

// has asserts that each server has the written notes.
func (s shop) has(written map[string]int) {
	s.t.Helper()
	s.healthy("db", "cache", "web")
	got := s.client(`set -e
psql -h postgres -U postgres -qAtc "select count(*), min(n), max(n) from notes"
redis-cli -h redis llen notes
for n in 1 ` + fmt.Sprint(written["web"]) + `; do curl -sSf http://web/notes/$n; done`)
	want := fmt.Sprintf("%d|1|%[1]d\n%d\nnote 1\nnote %d", written["db"], written["cache"], written["web"])
	if files := s.must("exec", "web", "sh", "-c", "ls /var/www/html/notes | wc -l"); got != want || files != fmt.Sprint(written["web"]) {
		s.t.Errorf("the servers have %q and %s files, want %q", got, files, want)
	}
}

// stopAndStart ends the servers in every way and starts them again.
func (s shop) stopAndStart(written map[string]int) {
	s.t.Helper()
	s.must("stop", "-t", "60", "web", "cache", "db")
	for name, signal := range map[string]string{"web": "SIGQUIT", "cache": "SIGTERM", "db": "SIGINT"} {
		if why := s.must("why", name); !strings.Contains(why, "exited with code 0 after "+signal+", asked for by cli longshore stop") {
			s.t.Errorf("why %s: %s", name, why)
		}
	}
	if out, err := s.CLI("run", "--rm", "--network", "shop", "debian/tools", "redis-cli", "-h", "redis", "ping"); err == nil {
		s.t.Errorf("a stopped server was found: %s", out)
	}
	s.Kill()
	s.Up()
	s.must("start", "db", "cache")
	s.healthy("db", "cache")
	s.must("start", "web")
	s.has(written)
	// After a kill the database mends its files, and the web server still reaches it.
	s.must("kill", "-s", "KILL", "db")
	s.must("wait", "db")
	s.must("start", "db")
	s.must("restart", "-t", "60", "cache")
	s.has(written)
	if got := s.client(`psql -h web -U postgres -qAtc "select count(*) from notes"; redis-cli -h web llen notes`); got != fmt.Sprintf("%d\n%d", written["db"], written["cache"]) {
		s.t.Errorf("by the web server: %q", got)
	}
}

// replace runs new containers on the volumes of those that are removed.
func (s shop) replace(written map[string]int) {
	s.t.Helper()
	s.must("stop", "-t", "60", "db", "cache")
	s.must("rm", "db", "cache")
	s.database()
	s.cache()
	s.has(written)
	s.must("run", "-d", "--name", "copy", "--network", "shop", "debian/redis", "--replicaof", "cache", "6379", "--protected-mode", "no")
	nodetest.Eventually(s.t, "the second cache has what the first one has", func() bool {
		out, err := s.CLI("exec", "copy", "redis-cli", "llen", "notes")
		return err == nil && strings.TrimSpace(out) == fmt.Sprint(written["cache"])
	})
}

// leave removes everything.
func (s shop) leave() {
	s.t.Helper()
	s.must("rm", "-f", "-v", "web", "cache", "db", "copy")
	if volumes := strings.Fields(s.must("volume", "ls", "-q")); !slices.Equal(slices.Sorted(slices.Values(volumes)), []string{"data", "memory", "site"}) {
		s.t.Errorf("volumes that are left: %q", volumes)
	}
	s.must("volume", "rm", "data", "memory", "site")
	s.must("network", "rm", "shop")
}
