package relay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nomadbase "github.com/longshore/longshore/api/nomad/base"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
)

func TestTheCookieDecides(t *testing.T) {
	for value, want := range map[string]bool{"": false, "x": false, plugin.CookieValue: true} {
		if got := Wanted(func(string) string { return value }); got != want {
			t.Errorf("%q: %v", value, got)
		}
	}
}

func TestArguments(t *testing.T) {
	for _, tc := range []struct {
		args []string
		name string
	}{{nil, "longshore"}, {[]string{"-name=docker"}, "docker"}, {[]string{"--name", "exec"}, "exec"}, {[]string{"-name=Docker"}, ""}, {[]string{"agent"}, ""}, {[]string{"-x"}, ""}} {
		if name, err := arguments(tc.args); name != tc.name && (err == nil || tc.name != "") || (err == nil) != (tc.name != "") {
			t.Errorf("%q: %q, %v", tc.args, name, err)
		}
	}
	var log bytes.Buffer
	if status := Main(t.Context(), Options{Args: []string{"agent"}, Getenv: os.Getenv, Stdout: io.Discard, Stderr: &log}); status != 1 {
		t.Errorf("status %d", status)
	}
	var line map[string]string
	if err := json.Unmarshal(log.Bytes(), &line); err != nil || line["@level"] != "error" || line["@message"] == "" || line["@module"] != "longshore" || line["@timestamp"] == "" {
		t.Errorf("hclog reads %s: %v", log.Bytes(), err)
	}
}

func TestVersionsThatNomadCanCompare(t *testing.T) {
	for in, want := range map[string]string{
		"v1.2.3": "1.2.3", "1.2.3-rc1": "1.2.3", "v0.4.0": "0.4.0", "(devel)": "0.1.0", "": "0.1.0", "unknown": "0.1.0", "v0.0.0-20261121-abcdef": "0.1.0",
	} {
		if got := Version(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func TestWhatDiedIsNeverToldAsOurDeath(t *testing.T) {
	for _, c := range []codes.Code{codes.Unavailable, codes.Canceled} {
		err := notDead(status.Error(c, "gone"))
		if status.Code(err) != codes.Unknown || !strings.Contains(err.Error(), "gone") {
			t.Errorf("%s: %v", c, err)
		}
	}
	if err := status.Error(codes.FailedPrecondition, "no"); !errors.Is(notDead(err), err) {
		t.Error("another error was changed")
	}
	if notDead(nil) != nil {
		t.Error("no error was changed")
	}
}

// TestImportsStayFew: the plugin is started three times whenever Nomad is.
func TestImportsStayFew(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{.ImportPath}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for d := range strings.FieldsSeq(string(out)) {
		room, ok := strings.CutPrefix(d, "github.com/longshore/longshore/internal/")
		few := []string{"ocispec", "core", "beneath", "weaken", "invalid", "connlimit", "shortage"} // readers of a job's keys, and of connections
		if ok && !strings.HasPrefix(room, "face/nomad/") && !slices.Contains(few, room) {
			t.Errorf("the relay depends on %s", d)
		}
	}
}

func TestTheSocketGoesWithThePlugin(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, w := io.Pipe()
	done := make(chan int, 1)
	go func() {
		done <- Main(ctx, Options{Getenv: func(string) string { return dir }, Stdout: w, Stderr: io.Discard})
	}()
	buf := make([]byte, 200)
	n, err := r.Read(buf)
	socket := strings.Split(string(buf[:n]), "|")[3]
	if st, serr := os.Stat(filepath.Dir(socket)); err != nil || serr != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%q: %v, %v", buf[:n], err, serr)
	}
	cancel()
	if status := <-done; status != 0 {
		t.Errorf("status %d", status)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestKeysWithoutEffectAreLoggedOnce: not when Nomad only checks the configuration, which it then sends
// twice, and once when the plugin serves as a driver.
func TestKeysWithoutEffectAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	p := newProxy("longshore", "", slog.New(newHandler(&log)))
	p.blink, p.patience = 0, 0
	// A map of two keys.
	config := "\x82\xabinfra_image\xa5pause\xafrecover_stopped\xc3"
	data, err := proto.Marshal(&nomadbase.SetConfigRequest{MsgpackConfig: []byte(config)})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.configure(data); err != nil {
			t.Fatal(err)
		}
	}
	if log.Len() > 0 {
		t.Errorf("a configuration that is checked is logged: %s", &log)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		_ = p.fingerprint(fingerprintStream{ctx: ctx}, "")
	}
	if n := strings.Count(log.String(), `"keys":"infra_image, recover_stopped"`); n != 1 {
		t.Errorf("the keys are logged %d times: %s", n, &log)
	}
}

// fingerprintStream is a call of Fingerprint by a client that left.
type fingerprintStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s fingerprintStream) Context() context.Context { return s.ctx }
func (s fingerprintStream) RecvMsg(any) error        { return nil }
func (s fingerprintStream) SendMsg(any) error        { return s.ctx.Err() }
