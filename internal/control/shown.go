package control

import (
	"context"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/solo"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/encoding/protojson"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/solo/translate"
)

// shown has the parts of a create request that inspect shows as the user wrote them. The container's spec has only their
// effects.
type shown struct {
	Image       string            `json:"image,omitempty"`
	Binds       []string          `json:"binds,omitempty"`  // in the order of the request; none with VolumesFrom
	Mounts      []shownMount      `json:"mounts,omitempty"` // of --mount, without tmpfs
	CapAdd      []string          `json:"cap_add,omitempty"`
	CapDrop     []string          `json:"cap_drop,omitempty"`
	Security    []string          `json:"security,omitempty"` // as --security-opt has them
	DNS         []string          `json:"dns,omitempty"`
	DNSSearch   []string          `json:"dns_search,omitempty"`
	DNSOptions  []string          `json:"dns_options,omitempty"`
	Hosts       []string          `json:"hosts,omitempty"`
	Groups      []string          `json:"groups,omitempty"`
	Devices     []string          `json:"devices,omitempty"`
	Ulimits     []string          `json:"ulimits,omitempty"`
	Tmpfs       map[string]string `json:"tmpfs,omitempty"` // the options of each target
	VolumesFrom []string          `json:"volumes_from,omitempty"`
	Links       []string          `json:"links,omitempty"` // NAME:ALIAS
	PublishAll  bool              `json:"publish_all,omitempty"`
	Network     string            `json:"network,omitempty"` // another container's, as CONTAINER:ID
	PID         string            `json:"pid,omitempty"`
	IPC         string            `json:"ipc,omitempty"`
	UTS         string            `json:"uts,omitempty"`
	Userns      string            `json:"userns,omitempty"`
	StopGrace   *time.Duration    `json:"stop_grace,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// Health is the check of the request, nil for the image's.
	Health *core.HealthCheck `json:"health,omitempty"`
	// CPUQuota says that the quota of CPU time is the request's own, and not that of a number of CPUs.
	CPUQuota          bool     `json:"cpu_quota,omitempty"`
	DeviceCgroupRules []string `json:"device_cgroup_rules,omitempty"`
}

// shownOf returns the parts of a stored request that inspect shows, nil if the record has no request.
func shownOf(rec solo.Record) (*shown, error) {
	if len(rec.Request) == 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	req := &longshorev1.CreateRequest{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(rec.Request, req); err != nil {
		return nil, fmt.Errorf("read the stored request: %w", err)
	}
	s := partsOf(req)
	return &s, nil
}

// partsOf returns the parts of a request that inspect shows.
func partsOf(req *longshorev1.CreateRequest) shown {
	s := shown{
		Image: req.GetImage(), CapAdd: req.GetCapAdd(), CapDrop: req.GetCapDrop(), DNS: req.GetDns().GetServers(), DNSSearch: req.GetDns().GetSearches(),
		DNSOptions: req.GetDns().GetOptions(), Hosts: req.GetHosts(), Groups: req.GetGroups(), Devices: req.GetDevices(), VolumesFrom: req.GetVolumesFrom(),
		PublishAll: req.GetPublishAll(), PID: req.GetPid(), IPC: req.GetIpc(), UTS: req.GetUts(), Userns: req.GetUserns(), Annotations: req.GetAnnotations(),
		Ulimits: req.GetUlimits(), CPUQuota: req.GetCpuQuota() != 0,
		DeviceCgroupRules: req.GetDeviceCgroupRules(), Health: solo.AskedHealth(req.GetHealth()),
	}
	if _, joins := translate.JoinedContainer(req.GetNetwork()); joins {
		s.Network = req.GetNetwork()
	}
	for _, l := range req.GetLinks() {
		if name := strings.TrimPrefix(l, "/"); !strings.Contains(name, ":") {
			l = name + ":" + name
		}
		s.Links = append(s.Links, strings.TrimPrefix(l, "/"))
	}
	for _, t := range req.GetTmpfs() {
		if s.Tmpfs == nil {
			s.Tmpfs = map[string]string{}
		}
		s.Tmpfs[t.GetTarget()] = strings.Join(t.GetOptions(), ",")
	}
	for _, m := range req.GetMounts() {
		if m.GetByMount() {
			s.Mounts = append(s.Mounts, shownMountOf(m))
			continue
		}
		if m.GetAnonymous() || len(s.VolumesFrom) > 0 {
			continue
		}
		s.Binds = append(s.Binds, bindText(m))
	}
	for _, m := range req.GetImages() {
		kind := "image"
		if m.GetArtifact() {
			kind = "artifact"
		}
		s.Mounts = append(s.Mounts, shownMount{Type: kind, Source: m.GetImage(), Target: m.GetTarget(), ReadOnly: true, SubPath: m.GetSubPath()})
	}
	if g := req.GetStopGrace(); g != nil {
		d := g.AsDuration()
		s.StopGrace = &d
	}
	switch {
	case req.GetSeccompUnconfined():
		s.Security = append(s.Security, "seccomp=unconfined")
	case len(req.GetSeccomp()) > 0:
		s.Security = append(s.Security, "seccomp="+string(req.GetSeccomp()))
	}
	if p := req.GetApparmor(); p != "" {
		s.Security = append(s.Security, "apparmor="+p)
	}
	if l := req.GetAnnotations()[core.LandlockAnnotation]; l != "" {
		s.Security = append(s.Security, "landlock="+l)
	}
	if req.GetNewPrivileges() {
		s.Security = append(s.Security, "no-new-privileges=false")
	}
	return s
}

// shownMount is a mount of --mount.
type shownMount struct {
	Type        string `json:"type"`
	Source      string `json:"source,omitempty"`
	Target      string `json:"target"`
	ReadOnly    bool   `json:"read_only,omitempty"`
	Propagation string `json:"propagation,omitempty"`
	NoCopy      bool   `json:"no_copy,omitempty"`
	SubPath     string `json:"sub_path,omitempty"`
}

func shownMountOf(m *longshorev1.Mount) shownMount {
	kind := "volume"
	if path.IsAbs(m.GetSource()) {
		kind = "bind"
	}
	return shownMount{kind, m.GetSource(), m.GetTarget(), m.GetReadOnly(), m.GetPropagation(), m.GetNoCopy(), m.GetSubPath()}
}

// bindText returns a mount in the form of -v.
func bindText(m *longshorev1.Mount) string {
	text := m.GetSource()
	if m.GetSubPath() != "" {
		text += "/" + m.GetSubPath()
	}
	text += ":" + m.GetTarget()
	var options []string
	if m.GetReadOnly() {
		options = append(options, "ro")
	}
	if m.GetPropagation() != "" {
		options = append(options, m.GetPropagation())
	}
	if m.GetNoCopy() {
		options = append(options, "nocopy")
	}
	if len(options) > 0 {
		text += ":" + strings.Join(options, ",")
	}
	return text
}

// imageConfig returns the configuration of an image for inspect: OCI's and docker's members. It is nil if the image has
// been removed.
func imageConfig(ctx context.Context, s *Server, id digest.Digest) (any, error) {
	if id == "" {
		return nil, nil //nolint:nilnil // the container has no image
	}
	images, err := s.all.Images.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, img := range images {
		if img.ID == id {
			return struct {
				imagespec.ImageConfig
				Healthcheck *core.HealthCheck `json:",omitempty"`
				Shell       []string          `json:",omitempty"`
			}{img.Config.Config, img.Health, img.Shell}, nil
		}
	}
	return nil, nil //nolint:nilnil // it has been removed
}

// layers returns the directories of an overlay mount for inspect, with docker's names; nil if there is none at root.
func layers(root string) map[string]string {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil // without it inspect shows no directories
	}
	return overlayDirs(string(table), root)
}

// overlayDirs finds the overlay mount at root in the text of a mountinfo file.
func overlayDirs(mountinfo, root string) map[string]string {
	plain := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(mountinfo) {
		mount, source, ok := strings.Cut(strings.TrimSpace(line), " - ")
		at, of := strings.Fields(mount), strings.Fields(source)
		if !ok || len(at) < 5 || len(of) < 3 || of[0] != "overlay" || plain.Replace(at[4]) != root {
			continue
		}
		dirs := map[string]string{"MergedDir": root}
		for option := range strings.SplitSeq(plain.Replace(of[2]), ",") {
			name, value, _ := strings.Cut(option, "=")
			if shown, ok := map[string]string{"lowerdir": "LowerDir", "upperdir": "UpperDir", "workdir": "WorkDir"}[name]; ok {
				dirs[shown] = value
			}
		}
		return dirs
	}
	return nil
}
