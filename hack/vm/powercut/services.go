package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A service is one of the twelve, by the name of its container.
type service struct {
	name   string
	policy string
	// once says that the program ends by itself, with 0.
	once bool
	// byUnit says that systemd starts it, in a new container each time.
	byUnit bool
	// fixed says that its address has been chosen.
	fixed bool
	// free says that it is stopped, started and restarted by hand; the others take writes.
	free bool
}

// The program sleeps and ends with 0 when it is stopped.
const waits = `trap "exit 0" TERM; sleep 1000000 & wait $!`

const serviceImage = "services:local"

func twelve() []service {
	return []service{
		{name: "db", policy: "always", fixed: true},
		{name: "cache", policy: "unless-stopped"},
		{name: "web", policy: "always", free: true},
		{name: "idle", policy: "no", free: true},
		{name: "once", policy: "on-failure", once: true},
		{name: "shop-front-1", policy: "always", free: true},
		{name: "shop-api-1", policy: "unless-stopped", free: true},
		{name: "shop-queue-1", policy: "always", fixed: true, free: true},
		{name: "shop-worker-1", policy: "on-failure", free: true},
		{name: "shop-ticker-1", policy: "no", free: true},
		{name: "systemd-log", policy: "always", byUnit: true, fixed: true},
		{name: "systemd-site", policy: "always", byUnit: true},
	}
}

// files are the Compose file and the Quadlet files, by their paths.
func definitions() map[string]string {
	const quadlets = "/etc/containers/systemd/"
	return map[string]string{
		"/var/lib/vm/compose.yaml": `name: shop
services:
  front:
    image: services:local
    command: nginx
    restart: always
    ports: ["8081:80"]
    depends_on: [api]
  api:
    image: services:local
    command: busybox httpd -f -p 80 -h /srv/www # as the first process it ignores SIGTERM
    restart: unless-stopped
    stop_grace_period: 2s
  queue:
    image: services:local
    command: redis-server --dir /data/cache --appendonly yes
    restart: always
    volumes: ["queue:/data/cache"]
    networks: {default: {ipv4_address: 10.78.0.50}}
  worker:
    image: services:local
    command: ["sh", "-c", 'trap "exit 0" TERM; sleep 1000000 & wait $$!']
    restart: on-failure
    depends_on: [queue]
  ticker:
    image: services:local
    command: ["sh", "-c", 'trap "exit 0" TERM; sleep 1000000 & wait $$!']
volumes: {queue: {}}
networks: {default: {ipam: {config: [{subnet: 10.78.0.0/24}]}}}
`,
		quadlets + "back.network": "[Network]\nSubnet=10.79.0.0/24\n",
		quadlets + "log.volume":   "[Volume]\n",
		quadlets + "log.container": `[Container]
Image=services:local
Pull=never
Network=back.network
IP=10.79.0.50
Volume=log.volume:/data/log
RunInit=true
Exec=sleep 1000000
[Service]
Restart=always
[Install]
WantedBy=multi-user.target
`,
		quadlets + "site.container": `[Container]
Image=services:local
Pull=never
PublishPort=8082:80
Exec=nginx
HealthCmd=busybox wget -q -O /dev/null http://127.0.0.1/
HealthInterval=2s
Notify=healthy
[Service]
Restart=always
TimeoutStartSec=300
[Install]
WantedBy=multi-user.target
`,
	}
}

// site is the guest with services.
type site struct {
	*node
	address string
	settled bool // an earlier boot has made the services
	hands   map[string]hand
	leaving atomic.Bool // the guest reboots: a failure from here on is no violation
}

// services checks the services and then works with them until the power goes, or until the guest
// reboots.
func services(ctx context.Context) error {
	console, err := os.OpenFile("/dev/ttyS0", os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	params, err := kernelParams()
	if err != nil {
		return err
	}
	s := &site{
		node:    &node{bin: "/usr/bin", console: console, gone: make(chan struct{})},
		address: params["longshore.address"],
		settled: params["longshore.settled"] == "1",
		hands:   map[string]hand{},
	}
	for word, h := range map[string]hand{"stopped": stopped, "unsure": unsure} {
		for name := range strings.SplitSeq(params["longshore."+word], ",") {
			s.hands[name] = h
		}
	}
	if err := s.live(ctx, params); err != nil && !s.leaving.Load() && ctx.Err() == nil {
		s.violation(ctx, err, "journalctl", "-b", "--no-pager", "-o", "short-monotonic", "-u", "longshore", "-u", "log*", "-u", "back*", "-u", "site", "-t", "systemd")
		return os.WriteFile("/proc/sysrq-trigger", []byte("o"), 0)
	}
	<-ctx.Done() // systemd stops this service when the guest goes down
	return nil
}

func (s *site) live(ctx context.Context, params map[string]string) error {
	if err := hasWriteCache(); err != nil {
		return err
	}
	if err := s.eventually(func() error { _, err := s.cli(ctx, "ps"); return err }); err != nil {
		return err
	}
	if !s.settled {
		if err := s.settle(ctx); err != nil {
			return err
		}
	}
	next, err := s.verify(ctx)
	if err != nil {
		return err
	}
	if params["longshore.work"] != "1" {
		s.say(sayDone)
		return nil
	}
	s.say(sayWorking)
	failed := make(chan error, 4)
	for _, w := range s.writers() {
		go func() { failed <- s.write(ctx, w, next[w.name]) }()
	}
	go func() { failed <- s.byHand(ctx, params["longshore.reboot"]) }()
	return <-failed
}

// settle makes the services.
func (s *site) settle(ctx context.Context) error {
	for path, text := range definitions() {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	unix.Sync()
	for _, args := range [][]string{
		{"import", "/longshore/services.tar", serviceImage},
		{"network", "create", "--subnet", "10.77.0.0/24", "app"},
		{"run", "-d", "--name", "db", "--restart", "always", "--network", "app", "--ip", "10.77.0.50", "-v", "db:/data/db", "--user", "postgres", "--stop-signal", "INT", serviceImage, "postgres"},
		{
			"run", "-d", "--name", "cache", "--restart", "unless-stopped", "--network", "app", "-p", "6379:6379", "-v", "cache:/data/cache", "--user", "redis", serviceImage,
			"redis-server", "--dir", "/data/cache", "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--protected-mode", "no",
		},
		{"run", "-d", "--name", "web", "--restart", "always", "--network", "app", "-p", "8080:80", serviceImage, "nginx"},
		{"run", "-d", "--name", "idle", serviceImage, "sh", "-c", waits},
		{"run", "-d", "--name", "once", "--restart", "on-failure", serviceImage, "true"},
		{"up", "-d", "-f", "/var/lib/vm/compose.yaml"},
	} {
		if _, err := s.cli(ctx, args...); err != nil {
			return err
		}
	}
	for _, args := range [][]string{{"daemon-reload"}, {"start", "--no-block", "log", "site"}} {
		if out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("systemctl %v: %w: %s", args, err, out)
		}
	}
	return s.eventually(func() error {
		_, err := s.sql(ctx, "create table if not exists w (n int primary key)")
		return err
	})
}

func (s *site) sql(ctx context.Context, text string) (string, error) {
	return s.cli(ctx, "exec", "db", "psql", "-h", "/tmp", "-U", "postgres", "-qAtc", text)
}

// container has a container's members of inspect.
type container struct{ id, state, code, started, address string }

func (s *site) containers(ctx context.Context) (map[string]container, error) {
	args := []string{"inspect", "-f", "{{.Name}} {{.Id}} {{.State.Status}} {{.State.ExitCode}} {{.State.StartedAt}} {{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"}
	for _, v := range twelve() {
		args = append(args, v.name)
	}
	out, err := s.cli(ctx, args...)
	if err != nil {
		return nil, err
	}
	all := map[string]container{}
	for line := range strings.Lines(out) {
		f := append(strings.Fields(line), "")
		if len(f) < 6 {
			return nil, fmt.Errorf("inspect: %q", line)
		}
		all[strings.TrimPrefix(f[0], "/")] = container{f[1], f[2], f[3], f[4], f[5]}
	}
	return all, nil
}

// verify checks everything, and returns the number of writes that each writer finds.
func (s *site) verify(ctx context.Context) (map[string]int, error) {
	if out, err := s.cli(ctx, "check"); err != nil {
		return nil, fmt.Errorf("check after the boot: %w: %s", err, out)
	}
	for _, try := range []func(context.Context) error{s.states, s.serve, s.units} {
		if err := s.eventually(func() error { return try(ctx) }); err != nil {
			return nil, err
		}
	}
	if err := s.sayFacts(ctx); err != nil {
		return nil, err
	}
	found := map[string]int{}
	for _, w := range s.writers() {
		var n int
		if err := s.eventually(func() (err error) { n, err = w.found(ctx); return err }); err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		s.say(sayFound, w.name, strconv.Itoa(n))
		found[w.name] = n
	}
	if err := s.states(ctx); err != nil {
		return nil, fmt.Errorf("in the end: %w", err)
	}
	if err := s.reasons(ctx); err != nil {
		return nil, err
	}
	if out, err := s.cli(ctx, "check"); err != nil {
		return nil, fmt.Errorf("check with all services: %w: %s", err, out)
	}
	return found, nil
}

// states compares each service's state with its policy.
func (s *site) states(ctx context.Context) error {
	all, err := s.containers(ctx)
	if err != nil {
		return err
	}
	for _, v := range twelve() {
		c, want := all[v.name], afterBoot(v.policy, s.hands[v.name])
		switch {
		case v.once:
			if c.state != "exited" || c.code != "0" {
				err = fmt.Errorf("%s is %s with %s, wanted exited with 0", v.name, c.state, c.code)
			}
		case want == mustRun && c.state != "running":
			err = fmt.Errorf("%s (%s) is %s with %s, wanted running", v.name, v.policy, c.state, c.code)
		case want == mustRest && s.settled && c.state != "exited":
			err = fmt.Errorf("%s (%s) is %s, wanted exited", v.name, v.policy, c.state)
		case want == mustRest && s.settled && s.hands[v.name] == letRun && c.code != "0" && c.code != "255":
			err = fmt.Errorf("%s (%s) has ended with %s, wanted 0 of a shutdown or 255 of a power cut", v.name, v.policy, c.code)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reasons checks the reason of each end that a boot has brought.
func (s *site) reasons(ctx context.Context) error {
	all, err := s.containers(ctx)
	if err != nil {
		return err
	}
	for _, v := range twelve() {
		if !s.settled || v.policy != "no" || s.hands[v.name] != letRun {
			continue
		}
		want := "because the node shuts down"
		if all[v.name].code == "255" {
			want = "it was running when the node went down"
		}
		if out, err := s.cli(ctx, "why", v.name); err != nil || !strings.Contains(out, want) {
			return fmt.Errorf("why %s ended with %s: %q, wanted %q: %w", v.name, all[v.name].code, out, want, err)
		}
	}
	return nil
}

// serve gets a page of each web server by the guest's address, and the database's address by its name.
func (s *site) serve(ctx context.Context) error {
	client := http.Client{Timeout: 20 * time.Second}
	for _, port := range []string{"8080", "8081", "8082"} {
		url := "http://" + net.JoinHostPort(s.address, port) + "/"
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(body) != "served\n" {
			return fmt.Errorf("%s: %q: %w", url, body, err)
		}
	}
	out, err := s.cli(ctx, "exec", "web", "getent", "hosts", "db")
	if err == nil && !strings.HasPrefix(out, "10.77.0.50 ") {
		err = fmt.Errorf("the name db has the address %q", out)
	}
	return err
}

func (s *site) units(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "systemctl", "is-active", "longshore", "log", "site").Output()
	if err != nil {
		return fmt.Errorf("units: %s", strings.Join(strings.Fields(string(out)), " "))
	}
	out, err = exec.CommandContext(ctx, "systemctl", "show", "--value", "-p", "NRestarts", "longshore").Output()
	if err == nil && strings.TrimSpace(string(out)) != "0" {
		err = fmt.Errorf("restarts of the agent: %s", out)
	}
	return err
}

// sayFacts names the values that no boot may change.
func (s *site) sayFacts(ctx context.Context) error {
	all, err := s.containers(ctx)
	if err != nil {
		return err
	}
	for _, v := range twelve() {
		if !v.byUnit {
			s.say(sayFact, v.name+".id", all[v.name].id)
		}
		if v.fixed {
			s.say(sayFact, v.name+".address", all[v.name].address)
		}
		if v.once {
			s.say(sayFact, v.name+".started", all[v.name].started)
		}
	}
	out, err := s.cli(ctx, "network", "inspect", "-f", "{{.Name}} {{.Id}} {{range .IPAM.Config}}{{.Subnet}} {{.Gateway}}{{end}}", "app", "shop_default", "systemd-back")
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		s.say(sayFact, strings.TrimSpace(line))
	}
	return nil
}

// A writer makes numbered writes, each acknowledged after a sync, and counts them.
type writer struct {
	name string
	// found counts the writes that have survived; it fails if one between them is missing.
	found func(context.Context) (int, error)
	// open starts a session of lines.
	open func(context.Context) (io.Writer, io.Reader, error)
	// request and reply are the N-th line of each.
	request, reply func(n int) string
}

func (s *site) writers() []writer {
	plain := strconv.Itoa
	return []writer{
		{
			name: "db",
			found: func(ctx context.Context) (int, error) {
				out, err := s.sql(ctx, "select count(*), coalesce(max(n), 0) from w")
				if err != nil {
					return 0, err
				}
				return agree(strings.Split(strings.TrimSpace(out), "|"))
			},
			open:    s.session("db", "psql", "-h", "/tmp", "-U", "postgres", "-qAt", "-v", "ON_ERROR_STOP=1"),
			request: func(n int) string { return fmt.Sprintf("insert into w values (%d) returning n;\n", n) },
			reply:   plain,
		},
		{
			name: "cache",
			found: func(ctx context.Context) (int, error) {
				out, err := s.cli(ctx, "exec", "cache", "redis-cli", "eval", "return {redis.call('llen','w'), redis.call('lindex','w',-1) or '0'}", "0")
				if err != nil {
					return 0, err
				}
				return agree(strings.Fields(out))
			},
			open: func(ctx context.Context) (io.Writer, io.Reader, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(s.address, "6379"))
				return conn, conn, err
			},
			request: func(n int) string { return fmt.Sprintf("RPUSH w %d\r\n", n) },
			reply:   func(n int) string { return fmt.Sprintf(":%d", n) },
		},
		{
			name: "log",
			found: func(ctx context.Context) (int, error) {
				out, err := s.cli(ctx, "exec", "systemd-log", "sh", "-c", "touch /data/log/w; wc -l </data/log/w; tail -n 1 /data/log/w")
				if err != nil {
					return 0, err
				}
				return agree(append(strings.Fields(out), "0")[:2])
			},
			open: s.session("systemd-log", "sh"),
			request: func(n int) string {
				return fmt.Sprintf("echo %d | dd of=/data/log/w oflag=append conv=notrunc,fsync status=none && echo %d\n", n, n)
			},
			reply: plain,
		},
	}
}

// agree returns the number of writes if the last one has the same number.
func agree(pair []string) (int, error) {
	if len(pair) != 2 || pair[0] != pair[1] {
		return 0, fmt.Errorf("number and last one of the writes: %q", pair)
	}
	return strconv.Atoi(pair[0])
}

// session opens a command in a container.
func (s *site) session(name string, command ...string) func(context.Context) (io.Writer, io.Reader, error) {
	return func(ctx context.Context) (io.Writer, io.Reader, error) {
		cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "longshore"), append([]string{"exec", "-i", name}, command...)...)
		in, err := cmd.StdinPipe()
		if err != nil {
			return nil, nil, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, nil, err
		}
		cmd.Stderr = s.console
		return in, out, cmd.Start()
	}
}

// write makes one write after the other.
func (s *site) write(ctx context.Context, w writer, n int) error {
	in, out, err := w.open(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", w.name, err)
	}
	replies := bufio.NewScanner(out)
	for {
		n++
		if _, err := io.WriteString(in, w.request(n)); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		if !replies.Scan() {
			return fmt.Errorf("%s ended after write %d: %w", w.name, n-1, errors.Join(io.ErrUnexpectedEOF, replies.Err()))
		}
		if got, want := strings.TrimSpace(replies.Text()), w.reply(n); got != want {
			return fmt.Errorf("%s answered %q, wanted %q", w.name, got, want)
		}
		s.say(sayWrote, w.name, strconv.Itoa(n))
	}
}

// byHand stops, starts and restarts services, and reboots the guest after so many times.
func (s *site) byHand(ctx context.Context, reboot string) error {
	until, err := strconv.Atoi(reboot)
	if err != nil {
		until = -1 // the power goes
	}
	all, err := s.containers(ctx)
	if err != nil {
		return err
	}
	up := map[string]bool{}
	var free []service
	for _, v := range twelve() {
		if v.free {
			free = append(free, v)
			up[v.name] = all[v.name].state == "running"
		}
	}
	for i := 0; i != until; i++ {
		v := free[rand.IntN(len(free))] //nolint:gosec // any will do
		op := opStart
		if up[v.name] {
			op = opStop
			if strings.HasPrefix(v.policy, "always") && i%2 == 1 {
				op = opRestart
			}
		}
		s.say(sayBegin, op, v.name)
		if _, err := s.cli(ctx, op, v.name); err != nil {
			return err
		}
		up[v.name] = op != opStop
		s.say(sayDid, op, v.name)
	}
	s.leaving.Store(true)
	s.say(sayReboot)
	return exec.CommandContext(ctx, "systemctl", "reboot").Run()
}
