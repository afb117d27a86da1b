// Package plugin has the common parts of the driver plugin, which Nomad starts, and the face in the
// agent: names, versions, the plugin's configuration and its transport between them.
//
// It must not know tasks. Start reading at Config.
package plugin

import (
	"context"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	nomadbase "github.com/longshore/longshore/api/nomad/base"
	"github.com/longshore/longshore/internal/face/nomad/schema"
	"github.com/longshore/longshore/internal/invalid"
)

// CookieKey in the environment, with CookieValue, says that Nomad has started us
// as a plugin.
const (
	CookieKey   = "NOMAD_PLUGIN_MAGIC_COOKIE"
	CookieValue = "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255"
)

const (
	// APIVersion is the one version of the plugin API there has ever been.
	APIVersion = "v0.1.0"
	// DriverName is the driver's name in jobs, unless the plugin has a flag for another.
	DriverName = "longshore"
	// DockerName is that of Nomad's driver for docker, when the plugin stands in for
	// it.
	DockerName = "docker"
	// ExecName is that of its driver for programs in a directory of the node's.
	ExecName = "exec"
	// DefaultSocket is where the agent's face listens.
	DefaultSocket = "/run/longshore/nomad.sock"
	// DriverService is the name of the gRPC service of drivers.
	DriverService = "hashicorp.nomad.plugins.drivers.proto.Driver"
	// BaseService is that of all plugins.
	BaseService = "hashicorp.nomad.plugins.base.proto.BasePlugin"
)

// The gRPC metadata that the relay adds to calls.
const (
	configKey = "longshore-config-bin" // the plugin's SetConfigRequest, as it came
	nameKey   = "longshore-name"       // the driver's name in jobs
	retryKey  = "longshore-retry"      // "1": the same call may have been carried out already
)

// The ways of a task's output to `nomad alloc logs`.
const (
	LogFiles = "files" // the keeper writes and rotates the files itself
	LogFIFO  = "fifo"  // Nomad's own collector reads from FIFOs
)

// Config is the plugin's block config in Nomad's agent configuration.
type Config struct {
	Socket string
	Logs   string
	// AllowPrivileged permits settings that remove the walls: privileged, namespaces of the host,
	// unconfined filters.
	AllowPrivileged bool
	// Volumes permits to show host paths outside of the allocation's directory.
	Volumes bool
	// CreateNetwork has us make the network namespaces of groups, so that a group
	// may have a host name.
	CreateNetwork bool
	// AllowCaps are the capabilities that tasks may have; nil is the default
	// ones, "all" every one.
	AllowCaps []string
	// AllowRuntimes are the runtimes that jobs may name; nil is any.
	AllowRuntimes []string
	// PidsLimit is that of tasks that ask for none; 0 is no limit.
	PidsLimit int64
	// Users are the ids of the node that user namespaces of tasks get.
	Users Users
	// ImageDelay is how long an image that no task uses any more is kept;
	// negative is for ever.
	ImageDelay time.Duration
	// PullTimeout bounds the pull of a task that says nothing.
	PullTimeout time.Duration
	// AuthHelper supplies the credentials of registries if a task has none: the program
	// docker-credential-AuthHelper, if the agent's configuration has it; "" asks nobody.
	AuthHelper string
	// AllowedModes are the modes of the namespaces pid, ipc and uts that tasks may name without
	// AllowPrivileged, as patterns.
	AllowedModes map[string][]string
	// Ignored are the keys of the block that have no effect, sorted.
	Ignored []string
}

// Users are ranges of user and group ids of the node, one after the other.
type Users struct {
	First  uint32 // the first id of the first range
	Ranges int    // how many there are
}

// UsersRange is the size of a task's range of ids.
const UsersRange = 65536

// Fields is the schema of Config.
func Fields() []schema.Field {
	return []schema.Field{
		{Name: "socket", Kind: schema.Text, Fields: []schema.Field{{Name: "name"}, {Name: "socket_path"}}}, // blocks are podman's
		{Name: "logs"},
		{Name: "allow_privileged", Kind: schema.Bool},
		{Name: "volumes", Kind: schema.Block, Fields: []schema.Field{{Name: "enabled", Kind: schema.Bool}, {Name: "selinuxlabel"}}},
		{Name: "create_network", Kind: schema.Bool},
		{Name: "allow_caps", Kind: schema.Strings},
		{Name: "allow_runtimes", Kind: schema.Strings},
		{Name: "pids_limit", Kind: schema.Number},
		{Name: "gc", Kind: schema.Block, Fields: []schema.Field{
			{Name: "image", Kind: schema.Bool},
			{Name: "image_delay"},
			{Name: "container", Kind: schema.Bool},
			{Name: "dangling_containers", Kind: schema.Block, Fields: []schema.Field{
				{Name: "enabled", Kind: schema.Bool}, {Name: "period"}, {Name: "creation_grace"}, {Name: "dry_run", Kind: schema.Bool},
			}},
		}},
		{Name: "allowed_modes", Kind: schema.Block, Fields: []schema.Field{
			{Name: "pid", Kind: schema.Strings}, {Name: "ipc", Kind: schema.Strings}, {Name: "userns", Kind: schema.Strings}, {Name: "uts", Kind: schema.Strings},
		}},
		// Of docker's and podman's drivers, without effect here.
		{Name: "endpoint"},
		{Name: "tls", Kind: schema.Block, Fields: []schema.Field{{Name: "cert"}, {Name: "key"}, {Name: "ca"}}},
		{Name: "logging", Kind: schema.Block, Fields: []schema.Field{{Name: "type"}, {Name: "driver"}, {Name: "config", Kind: schema.Map}, {Name: "options", Kind: schema.Map}}},
		{Name: "nvidia_runtime"},
		{Name: "infra_image"},
		{Name: "infra_image_pull_timeout"},
		{Name: "container_exists_attempts", Kind: schema.Number},
		{Name: "oom_score_adj", Kind: schema.Number},
		{Name: "pull_activity_timeout"},
		{Name: "disable_log_collection", Kind: schema.Bool},
		{Name: "windows_allow_insecure_container_admin", Kind: schema.Bool},
		{Name: "socket_path"},
		{Name: "recover_stopped", Kind: schema.Bool},
		{Name: "client_http_timeout"},
		{Name: "dns_servers", Kind: schema.Strings},
		{Name: "image_pull_timeout"},
		{Name: "auth", Kind: schema.Block, Fields: []schema.Field{{Name: "helper"}, {Name: "config"}}},
		{Name: "extra_labels", Kind: schema.Strings}, // of docker's and podman's drivers: a container has all of them anyway
		{Name: "userns", Kind: schema.Block, Fields: []schema.Field{{Name: "first_id", Kind: schema.Number}, {Name: "ranges", Kind: schema.Number}}},
	}
}

// defaultUsers are in systemd's range for containers, far from kubelet's ranges for pods.
const defaultUsers = 0x60000000

// Default is the configuration of a plugin block without config.
func Default() Config {
	return Config{
		Socket: DefaultSocket, Logs: LogFiles, ImageDelay: 3 * time.Minute, PullTimeout: 5 * time.Minute, Users: Users{First: defaultUsers, Ranges: 1024},
	}
}

// ParseConfig reads msgpack_config. InvalidArgument names the wrong key.
func ParseConfig(data []byte) (Config, error) {
	c := Default()
	v, err := schema.Decode(Fields(), data)
	if err != nil {
		return c, err
	}
	if s := v.String("socket"); s != "" {
		c.Socket = s
	}
	if !path.IsAbs(c.Socket) {
		return c, invalid.Errorf("config.socket %q is no absolute path", c.Socket)
	}
	if s := v.String("logs"); s != "" {
		c.Logs = s
	}
	if !slices.Contains([]string{LogFiles, LogFIFO}, c.Logs) {
		return c, invalid.Errorf("config.logs %q is neither %s nor %s", c.Logs, LogFiles, LogFIFO)
	}
	c.AllowPrivileged, c.Volumes = v.Bool("allow_privileged"), v.Block("volumes").Bool("enabled")
	c.CreateNetwork = v.Bool("create_network")
	c.AllowCaps, c.AllowRuntimes = v.Strings("allow_caps"), v.Strings("allow_runtimes")
	if c.PidsLimit, err = v.Int("pids_limit", 0, 1<<22); err != nil {
		return c, err
	}
	gc := v.Block("gc")
	if c.ImageDelay, err = duration("gc.image_delay", gc.String("image_delay"), c.ImageDelay); err != nil {
		return c, err
	}
	if gc.Has("image") && !gc.Bool("image") {
		c.ImageDelay = -1
	}
	if c.PullTimeout, err = duration("image_pull_timeout", v.String("image_pull_timeout"), c.PullTimeout); err != nil {
		return c, err
	}
	if c.AuthHelper = v.Block("auth").String("helper"); strings.ContainsAny(c.AuthHelper, "/\x00") {
		return c, invalid.Errorf("config.auth.helper %q is not a helper's name: use the part of the program's name after docker-credential-", c.AuthHelper)
	}
	modes := v.Block("allowed_modes")
	for _, name := range []string{"pid", "ipc", "uts"} {
		if list := modes.Strings(name); len(list) > 0 {
			if c.AllowedModes == nil {
				c.AllowedModes = map[string][]string{}
			}
			c.AllowedModes[name] = list
		}
	}
	c.Ignored = ignored(v)
	return c, c.Users.read(v.Block("userns"))
}

// ignored returns the keys in a block that docker's and podman's drivers have and this driver ignores.
// The guide has a replacement for each of them.
func ignored(v schema.Values) (keys []string) {
	for _, key := range []string{
		"client_http_timeout", "container_exists_attempts", "disable_log_collection", "dns_servers", "endpoint", "extra_labels", "infra_image", "infra_image_pull_timeout", "logging",
		"nvidia_runtime", "oom_score_adj", "pull_activity_timeout", "recover_stopped", "socket_path", "tls", "windows_allow_insecure_container_admin",
	} {
		if v.Has(key) {
			keys = append(keys, key)
		}
	}
	if len(v.Blocks("socket")) > 0 {
		keys = append(keys, "socket { }")
	}
	for block, names := range map[string][]string{"auth": {"config"}, "allowed_modes": {"userns"}, "gc": {"container", "dangling_containers"}, "volumes": {"selinuxlabel"}} {
		for _, key := range names {
			if v.Block(block).Has(key) {
				keys = append(keys, block+"."+key)
			}
		}
	}
	slices.Sort(keys)
	return keys
}

// Allows reports whether tasks may have a mode of the namespaces pid, ipc or uts.
func (c Config) Allows(namespace, mode string) bool {
	return c.AllowPrivileged || slices.ContainsFunc(c.AllowedModes[namespace], func(pattern string) bool {
		ok, err := path.Match(pattern, mode)
		return ok && err == nil
	})
}

// read reads the values. No range may reach the last id, which is nobody's.
func (u *Users) read(v schema.Values) error {
	if v.Has("first_id") {
		first, err := v.Int("first_id", UsersRange, math.MaxUint32-UsersRange)
		if err != nil {
			return err
		}
		u.First = uint32(first)
	}
	if v.Has("ranges") {
		n, err := v.Int("ranges", 1, math.MaxUint32/UsersRange)
		if err != nil {
			return err
		}
		u.Ranges = int(n)
	}
	if end := int64(u.First) + int64(u.Ranges)*UsersRange; end > math.MaxUint32 {
		return invalid.Errorf("config.userns: %d ranges from %d end at %d", u.Ranges, u.First, end)
	}
	return nil
}

func duration(key, text string, otherwise time.Duration) (time.Duration, error) {
	if text == "" {
		return otherwise, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, invalid.Errorf("config.%s %q is no duration such as 3m", key, text)
	}
	return d, nil
}

// Caller is the relay's description of itself in every call.
type Caller struct {
	Name string
	// SetConfig is the request as Nomad sent it; nil when it never did.
	SetConfig []byte
	// Retry says that the agent may have carried the same call out already and
	// died before it could answer.
	Retry bool
}

// Outgoing adds c to the metadata of a call to the face.
func (c Caller) Outgoing(ctx context.Context) context.Context {
	pairs := []string{nameKey, c.Name, configKey, string(c.SetConfig)}
	if c.Retry {
		pairs = append(pairs, retryKey, "1")
	}
	return metadata.AppendToOutgoingContext(ctx, pairs...)
}

// Session has the facts in a call's metadata.
type Session struct {
	Config
	Name     string
	Retry    bool
	Topology *nomadbase.ClientTopology // nil when this Nomad tells none
}

// Incoming reads a call's metadata; a call without any is one of the defaults.
func Incoming(ctx context.Context) (Session, error) {
	s := Session{Config: Default(), Name: DriverName}
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get(nameKey); len(v) > 0 && v[0] != "" {
		s.Name = v[0]
	}
	s.Retry = len(md.Get(retryKey)) > 0
	v := md.Get(configKey)
	if len(v) == 0 || v[0] == "" {
		return s, nil
	}
	var req nomadbase.SetConfigRequest
	if err := proto.Unmarshal([]byte(v[0]), &req); err != nil {
		return s, invalid.Errorf("the plugin's configuration: %v", err)
	}
	s.Topology = req.GetNomadConfig().GetDriver().GetTopology()
	var err error
	s.Config, err = ParseConfig(req.GetMsgpackConfig())
	return s, err
}
