// Package nomadtest drives the plugin as Nomad does: it starts it, shakes hands
// and calls its services.
//
// It knows the plugin by its process and its socket only. Start at Plugin.
package nomadtest

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/emptypb"

	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
	"github.com/longshore/longshore/internal/face/nomad/relay"
)

// Client is a plugin as its client sees it.
type Client struct {
	Base   nomadbase.BasePluginClient
	Driver nomaddriver.DriverClient
	Conn   *grpc.ClientConn
	// Address is the socket's, for a second client that reattaches.
	Address string
	// Log is the plugin's standard error.
	Log *Buffer

	end    func() error // waits for the plugin's end
	signal func(os.Signal) error
}

// Buffer may be written and read at once.
type Buffer struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String is all that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// The relay's patience in tests, where an agent that is away is so on purpose.
const (
	blink    = 20 * time.Millisecond
	patience = 20 * time.Second
)

// Relay runs the plugin in this process.
func Relay(t *testing.T, args ...string) *Client {
	t.Helper()
	r, w := io.Pipe()
	log := &Buffer{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int, 1)
	dir, err := os.MkdirTemp("", "ls") // a socket's address is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	go func() {
		done <- relay.Main(ctx, relay.Options{Args: args, Stdout: w, Stderr: log, Version: "v1.2.3", Blink: blink, Patience: patience, Getenv: func(key string) string {
			return map[string]string{"PLUGIN_UNIX_SOCKET_DIR": dir, plugin.CookieKey: plugin.CookieValue}[key]
		}})
		_ = w.Close()
	}()
	c := handshake(t, r, log)
	var once sync.Once
	c.end = func() (err error) {
		once.Do(func() {
			cancel()
			if status := <-done; status != 0 {
				t.Errorf("the plugin ended with %d: %s", status, log)
			}
		})
		return nil
	}
	t.Cleanup(func() { _ = c.end() })
	return c
}

// Plugin starts a binary as Nomad does.
func Plugin(t *testing.T, binary string, args ...string) *Client {
	t.Helper()
	cmd := exec.Command(binary, args...) //nolint:forbidigo // it is ended by the protocol
	dir, err := os.MkdirTemp("", "ls")   // it is killed, and leaves its socket behind
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cmd.Env = append(os.Environ(), "PLUGIN_UNIX_SOCKET_DIR="+dir, plugin.CookieKey+"="+plugin.CookieValue, "PLUGIN_MIN_PORT=10000", "PLUGIN_MAX_PORT=25000", "PLUGIN_PROTOCOL_VERSIONS=2")
	log := &Buffer{}
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := handshake(t, out, log)
	var once sync.Once
	var ended error
	c.end = func() error {
		once.Do(func() { ended = cmd.Wait() })
		return ended
	}
	c.signal = cmd.Process.Signal
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = c.end()
	})
	return c
}

// handshake reads the plugin's first line and connects.
func handshake(t *testing.T, stdout io.Reader, log *Buffer) *Client {
	t.Helper()
	lines := bufio.NewReader(stdout)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("no handshake: %v: %s", err, log)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	f := strings.Split(strings.TrimSpace(line), "|")
	if len(f) != 6 || f[0] != "1" || f[1] != "2" || f[2] != "unix" || f[4] != "grpc" || f[5] != "" {
		t.Fatalf("handshake %q", line)
	}
	return Reattach(t, f[3], log)
}

// Reattach connects to a running plugin, and makes go-plugin's first calls.
func Reattach(t *testing.T, address string, log *Buffer) *Client {
	t.Helper()
	conn := Dial(t, address)
	h, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: "plugin"})
	if err != nil || h.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Fatalf("health: %v, %v", h, err)
	}
	broker, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/plugin.GRPCBroker/StartStream")
	if err != nil {
		t.Fatalf("broker: %v", err)
	}
	_ = broker
	return &Client{Base: nomadbase.NewBasePluginClient(conn), Driver: nomaddriver.NewDriverClient(conn), Conn: conn, Address: address, Log: log}
}

// Configure sends the plugin's block config, as Nomad does before the first call.
func (c *Client) Configure(t *testing.T, config map[string]any, topology *nomadbase.ClientTopology) {
	t.Helper()
	if _, err := c.Base.SetConfig(t.Context(), SetConfig(config, topology)); err != nil {
		t.Fatal(err)
	}
}

// SetConfig is that request.
func SetConfig(config map[string]any, topology *nomadbase.ClientTopology) *nomadbase.SetConfigRequest {
	return &nomadbase.SetConfigRequest{
		MsgpackConfig: Encode(config), PluginApiVersion: "v0.1.0",
		NomadConfig: &nomadbase.NomadConfig{Driver: &nomadbase.NomadDriverConfig{ClientMinPort: 14000, ClientMaxPort: 14512, Topology: topology}},
	}
}

// Shutdown ends the plugin as go-plugin does, and waits for its end.
func (c *Client) Shutdown(t *testing.T) {
	t.Helper()
	if err := c.Conn.Invoke(t.Context(), "/plugin.GRPCController/Shutdown", &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if err := c.end(); err != nil {
		t.Errorf("the plugin's end: %v", err)
	}
}

// Signal sends the plugin's process a signal.
func (c *Client) Signal(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := c.signal(sig); err != nil {
		t.Fatal(err)
	}
}

// Ended waits for the end of the plugin's process.
func (c *Client) Ended() { _ = c.end() }

// Dial connects to a unix socket.
func Dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
