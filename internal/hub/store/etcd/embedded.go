package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/hub/store"
)

// The database's limits: how large it may be, and how many revisions stay readable for
// those that watch.
const (
	DefaultQuota = 8 << 30
	minQuota     = 16 << 20
	revisions    = "10000"
)

// maxRequest is the size of the largest transaction, in bytes.
const maxRequest = 10 << 20

// longestSocket is the length of the longest path of a socket.
const longestSocket = len(unix.RawSockaddrUnix{}.Path) - 1

// Open starts the database in its directory, or makes one, or connects to the user's. It is a
// store.Opener. FailedPrecondition when another program has the directory open.
func (o Options) Open(ctx context.Context, log *slog.Logger) (store.DB, error) {
	start := o.embedded
	if o.Remote != nil {
		start = o.remote
	}
	d, err := start(ctx, log)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// embedded starts the database in its directory.
func (o Options) embedded(ctx context.Context, log *slog.Logger) (*DB, error) {
	if o.Quota == 0 {
		o.Quota = DefaultQuota
	}
	if o.Quota < minQuota {
		return nil, fmt.Errorf("a database quota of %d bytes is too small: it needs %d: %w", o.Quota, minQuota, errdefs.ErrInvalidArgument)
	}
	lock, err := own(o.Dir)
	if err != nil {
		return nil, err
	}
	ending := new(atomic.Bool)
	cfg, err := o.configure(logCore{log: log, ending: ending})
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("start etcd in %s: %w", o.Dir, err)
	}
	d := &DB{etcd: etcd, prefix: DefaultPrefix, lock: lock, ending: ending, log: log, quota: o.Quota, full: make(chan struct{}, 1)}
	d.closed = sync.OnceValue(d.close)
	select {
	case <-etcd.Server.ReadyNotify():
	case err := <-etcd.Err():
		_ = d.Close()
		return nil, fmt.Errorf("start etcd in %s: %w", o.Dir, err)
	case <-ctx.Done():
		_ = d.Close()
		return nil, context.Cause(ctx)
	}
	d.client = v3client.New(etcd.Server)
	return d, nil
}

// lockName is the name of the file that the directory's hub locks.
const lockName = "lock"

// own makes the directory, for its owner alone, and locks it: etcd itself would wait for ever
// for another one to end.
func own(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the store's directory: %w", err)
	}
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the store's directory: %w", err)
	case !info.IsDir():
		return nil, fmt.Errorf("the store's directory %s is not a directory: %w", dir, errdefs.ErrFailedPrecondition)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("the store's directory %s is accessible to others than its owner: set mode 0700: %w", dir, errdefs.ErrFailedPrecondition)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the store's lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("the store in %s is open in another hub: %w", dir, errdefs.ErrFailedPrecondition)
	}
	return f, nil
}

// configure is etcd's configuration: one member, which listens on sockets in its directory and
// nowhere else.
func (o Options) configure(log logCore) (*embed.Config, error) {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = "hub", filepath.Join(o.Dir, "etcd")
	socket := func(name string) ([]url.URL, error) {
		path := filepath.Join(o.Dir, name)
		if len(path) > longestSocket {
			return nil, fmt.Errorf("the path of the store's socket %s has %d bytes, at most %d are possible: %w", path, len(path), longestSocket, errdefs.ErrInvalidArgument)
		}
		return []url.URL{{Scheme: "unix", Path: path}}, nil
	}
	client, err := socket("client.sock")
	if err != nil {
		return nil, err
	}
	peer, err := socket("peer.sock")
	if err != nil {
		return nil, err
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = client, client
	// etcd listens for other members at the host of this URL, never at its path: with a path alone
	// it would listen on a socket without a name, which every user of the machine may connect to.
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Host: peer[0].Path}}, peer
	cfg.InitialCluster = cfg.Name + "=" + peer[0].String()
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModeRevision, revisions
	cfg.QuotaBackendBytes, cfg.MaxRequestBytes, cfg.MaxTxnOps = o.Quota, maxRequest, store.MaxWrites
	cfg.UnsafeNoFsync = o.NoSync
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(log))
	return cfg, nil
}

// logCore passes etcd's warnings on, until Close: etcd calls the end of its own listeners an error.
type logCore struct {
	log    *slog.Logger
	ending *atomic.Bool
}

// Enabled implements zapcore.Core.
func (c logCore) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel && !c.ending.Load() }

// With implements zapcore.Core.
func (c logCore) With(fields []zapcore.Field) zapcore.Core {
	return logCore{c.log.With(attributes(fields)...), c.ending}
}

// Check implements zapcore.Core.
func (c logCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write implements zapcore.Core.
func (c logCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	level := slog.LevelWarn
	if e.Level >= zapcore.ErrorLevel {
		level = slog.LevelError
	}
	c.log.Log(context.Background(), level, "etcd: "+e.Message, attributes(fields)...) //nolint:sloglint // etcd's own text
	return nil
}

// Sync implements zapcore.Core.
func (logCore) Sync() error { return nil }

func attributes(fields []zapcore.Field) (list []any) {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(enc)
	}
	for k, v := range enc.Fields {
		list = append(list, slog.Any(k, v))
	}
	return list
}
