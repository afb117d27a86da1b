package swarm_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/swarm"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestManagersThatAreNone, or have certificates of others or of the past: one error each, and
// nothing is left.
func TestManagersThatAreNone(t *testing.T) {
	r := newRig(t)
	other := swarmtest.NewAuthority(t)
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	tlsOnly := httptest.NewUnstartedServer(http.NotFoundHandler())
	tlsOnly.Config.ErrorLog = log.New(io.Discard, "", 0)
	tlsOnly.StartTLS()
	defer tlsOnly.Close()
	life := r.Authority.Life
	expired := func() *swarmtest.Authority {
		r.Authority.Life = -time.Minute
		return r.Authority
	}
	for _, c := range []struct {
		name, addr string
		make       func()
		is         func(error) bool
		text       string
	}{
		{"one without TLS", plain.Listener.Addr().String(), nil, errdefs.IsUnavailable, "does not look like a TLS handshake"},
		{"one of the web", tlsOnly.Listener.Addr().String(), nil, errdefs.IsUnavailable, "ask " + tlsOnly.Listener.Addr().String() + " for the swarm's roots"},
		{"one that hangs up", hangsUp(t), nil, errdefs.IsUnavailable, "for the swarm's roots"},
		{"a manager with another root's certificate", r.Addr, func() { r.Certify(other) }, errdefs.IsUnavailable, "unknown authority"},
		{"a manager whose certificate has expired", r.Addr, func() { r.Certify(expired()) }, errdefs.IsUnavailable, "expired"},
		{"a node's certificate of another root", r.Addr, func() { r.IssueBy(other) }, errdefs.IsPermissionDenied, "is not of the swarm's root"},
		{"a node's certificate that has expired", r.Addr, func() { r.IssueBy(expired()) }, errdefs.IsFailedPrecondition, "clocks"},
	} {
		if c.make != nil {
			c.make()
		}
		_, err := r.face.Join(t.Context(), swarm.JoinRequest{Addr: c.addr, Token: r.Token})
		if !c.is(err) || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "desc = ") {
			t.Errorf("%s: %v", c.name, err)
		}
		if s := r.face.Status(); s.NodeID != "" {
			t.Errorf("%s: the node is a member: %+v", c.name, s)
		}
		if _, err := os.Stat(filepath.Join(r.root, "identity.json")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: an identity is kept: %v", c.name, err)
		}
		r.Authority.Life = life
		r.Certify(r.Authority)
		r.IssueBy(r.Authority)
	}
	r.join()
}

// hangsUp is an address where nobody says anything.
func hangsUp(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

// TestARootIsRotated: the node gets a certificate of the next root at a manager's request, and says
// so, and then that it trusts that root: without either the rotation never ends.
func TestARootIsRotated(t *testing.T) {
	r := newRig(t)
	r.join()
	r.runs("a")
	pid := r.container("a").Main.Pid
	r.Authority.Rotate(t)
	r.Ask(true, swarmv1.NodeRole_WORKER)
	subject, public := r.Authority.Issuer()
	r.Until("the node tells its new issuer", func() bool {
		info := r.Described().GetTlsInfo()
		return string(info.GetCertIssuerPublicKey()) == string(public) && string(info.GetCertIssuerSubject()) == string(subject)
	})
	r.Certify(r.Authority)
	r.Authority.Rotated()
	r.Ask(false, swarmv1.NodeRole_WORKER)
	r.Until("the node trusts the new root", func() bool { return string(r.Described().GetTlsInfo().GetTrustRoot()) == string(r.Authority.Roots()) })
	if n, s := r.Issued(), r.Sessions(); n != 2 || s != 1 {
		t.Errorf("%d certificates, %d sessions", n, s)
	}
	r.Certify(r.Authority) // of the new root alone
	r.Drop(true)
	r.Until("there is a session with a manager of the new root", func() bool { return r.Sessions() == 2 })
	if now := r.container("a").Main.Pid; now != pid {
		t.Errorf("its task was started again")
	}
	r.down()
	r.start()
	r.Until("and after a restart", func() bool { return r.face.Status().Session == "up" })
}

// TestARotationThatWasMissed: managers of the new root are trusted, and the certificate
// follows.
func TestARotationThatWasMissed(t *testing.T) {
	r := newRig(t)
	r.join()
	r.Authority.Rotate(t)
	r.Authority.Rotated()
	r.Ask(false, swarmv1.NodeRole_WORKER)
	r.Certify(r.Authority)
	roottest.Eventually(t, "the next roots are kept", func() bool {
		data, err := os.ReadFile(filepath.Join(r.root, "identity.json"))
		return err == nil && strings.Contains(string(data), "next_roots")
	})
	r.Drop(true)
	r.Until("there is a session with a manager of the new root", func() bool { return r.Sessions() == 2 })
	r.Ask(true, swarmv1.NodeRole_WORKER)
	r.Until("the node trusts the new root", func() bool { return string(r.Described().GetTlsInfo().GetTrustRoot()) == string(r.Authority.Roots()) })
}

// TestAnotherRole: a node that is to be a manager stays a worker that runs its tasks, names the
// fault, and gets a worker's certificate when it may.
func TestAnotherRole(t *testing.T) {
	r := newRig(t)
	r.join()
	r.runs("a")
	says := func(want string) {
		t.Helper()
		roottest.Eventually(t, "the status says "+want, func() bool {
			s := r.face.Status()
			return s.Session == "up" && strings.Contains(s.Error, want) && (s.Error == "") == (want == "")
		})
	}
	r.Ask(false, swarmv1.NodeRole_MANAGER)
	says("docker node demote node1")
	if n := r.Issued(); n != 1 {
		t.Errorf("%d certificates", n)
	}
	r.Ask(true, swarmv1.NodeRole_MANAGER)
	r.Until("there is a manager's certificate", func() bool { return r.Issued() == 2 })
	says("docker node demote node1")
	r.Assign(swarmtest.Task("b", image, "well"))
	r.Reaches("b", swarmv1.TaskState_COMPLETE)
	r.Ask(false, swarmv1.NodeRole_WORKER)
	r.Until("there is a worker's certificate", func() bool { return r.Issued() == 3 })
	says("")
	if c := r.container("a"); c.State != core.ContainerRunning {
		t.Errorf("the task is %s", c.State)
	}
}

// TestACertificateThatHasExpired: the tasks run on, and status and an event name the remedy.
func TestACertificateThatHasExpired(t *testing.T) {
	r := newRig(t)
	r.Authority.Life = 10 * time.Second
	r.join()
	r.runs("a")
	r.Hook(func(call string) error {
		if call == "IssueNodeCertificate" {
			return status.Error(codes.Unavailable, "not now")
		}
		return nil
	})
	roottest.Eventually(t, "the certificate has expired", func() bool { return r.face.Status().Expired })
	r.Drop(false)
	for e, err := range r.As(core.OwnerSwarm).Events(t.Context(), 0, core.Filter{Kinds: []core.EventKind{core.EventAgent}}) {
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(e.Note, "leave the swarm and join it again") {
			break
		}
	}
	roottest.Eventually(t, "the status says it", func() bool {
		s := r.face.Status()
		return s.Session == "down" && strings.Contains(s.Error, "leave the swarm and join it again")
	})
	if c := r.container("a"); c.State != core.ContainerRunning {
		t.Errorf("the task is %s", c.State)
	}
	r.Authority.Life = time.Hour
	r.Hook(nil)
	if err := r.face.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.face.Join(t.Context(), swarm.JoinRequest{Addr: r.Addr, Token: r.Token}); err != nil {
		t.Fatal(err)
	}
}

// TestAKeyThatIsSealed: without its passphrase no membership begins; nothing that is
// secret is in a file.
func TestAKeyThatIsSealed(t *testing.T) {
	r := newRig(t)
	r.down()
	path := filepath.Join(t.TempDir(), "passphrase")
	r.config.KeyPassphraseFile = path
	r.start()
	calls := 0
	r.Hook(func(string) error { calls++; return nil })
	if _, err := r.face.Join(t.Context(), swarm.JoinRequest{Addr: r.Addr, Token: r.Token}); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), path) || calls != 0 {
		t.Errorf("without the file: %v, %d calls", err, calls)
	}
	r.Hook(nil)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("planted words\n")
	r.join()
	r.runs("a")
	r.down()
	for text, is := range map[string]func(error) bool{"": errdefs.IsFailedPrecondition, "other words": errdefs.IsPermissionDenied} {
		write(text)
		r.Start()
		f, err := swarm.New(swarm.Options{
			Deps:   face.Deps{Engine: r.As(core.OwnerSwarm), Logger: slog.New(slog.DiscardHandler), KV: r.kv},
			Config: r.config, Root: r.root, State: r.state, MountFiles: func(string) error { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Serve(context.Background()); !is(err) {
			t.Errorf("passphrase %q: %v", text, err)
		}
		if s := f.Status(); s.Error == "" || strings.Contains(s.Error, "words") {
			t.Errorf("passphrase %q: status %+v", text, s)
		}
		if _, err := f.Join(t.Context(), swarm.JoinRequest{Addr: r.Addr, Token: r.Token}); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("passphrase %q: %v", text, err)
		}
		r.Stop()
	}
	write("planted words")
	r.start()
	r.Until("the session is resumed", func() bool { return r.face.Status().Session == "up" })
	if c := r.container("a"); c.State != core.ContainerRunning {
		t.Errorf("the task is %s", c.State)
	}
	for _, dir := range []string{r.root, r.state} {
		r.nowhere(dir, "planted words", r.Token, "BEGIN PRIVATE", "BEGIN EC PRIVATE", "session")
	}
	for key, value := range r.kv.All("") {
		for _, secret := range []string{"planted words", r.Token, "PRIVATE KEY", "session"} {
			if strings.Contains(string(value), secret) {
				t.Errorf("%s has %q", key, secret)
			}
		}
	}
}

// nowhere asserts that no file below dir has one of some texts.
func (r *rig) nowhere(dir string, texts ...string) {
	r.t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		data, err := io.ReadAll(f)
		for _, text := range texts {
			if strings.Contains(string(data), text) {
				r.t.Errorf("%s has %q", path, text)
			}
		}
		return errors.Join(err, f.Close())
	})
	if err != nil {
		r.t.Fatal(err)
	}
}
