package cri

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
)

// The record of this face in an object's Data: the request's config, for status answers to echo,
// without labels (they are the object's own) and without the values of environment variables (they
// are secret once the spec is made). The sum of the whole request tells a client's retry from
// another request of the same name.
//
// The part that lists, statuses and figures echo is stored apart, and they decode only that: the
// rest is most of a config, and for verbose answers and plugins only.
type record[T proto.Message] struct {
	Sum    [sha256.Size]byte
	Config T
	// Found has the results of the create: image, image_ref, image_id, user, the volumes that the
	// image declares as mounts, and the resources as last updated. Empty for a sandbox.
	Found *v1.ContainerStatus
}

// recordVersion is the version of new records. Records of version 1, from an earlier agent, have
// all of the config together, and are read too.
const recordVersion = 2

type (
	podRecord       = record[*v1.RunPodSandboxRequest]
	containerRecord = record[*v1.ContainerConfig]
)

// sumOf is the same for equal requests; maps have no order on the wire, so it is
// made with them sorted.
func sumOf(msgs ...proto.Message) ([sha256.Size]byte, error) {
	h := sha256.New()
	for _, m := range msgs {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			return [sha256.Size]byte{}, err
		}
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(b)))
		h.Write(n[:])
		h.Write(b)
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// splitConfig splits a config into the echoed part and the rest.
func splitConfig(config proto.Message) (echoed, rest proto.Message) {
	switch config := config.(type) {
	case *v1.RunPodSandboxRequest:
		c := config.GetConfig()
		head := &v1.PodSandboxConfig{Metadata: c.GetMetadata(), Annotations: c.GetAnnotations()}
		if o := c.GetLinux().GetSecurityContext().GetNamespaceOptions(); o != nil {
			head.Linux = &v1.LinuxPodSandboxConfig{SecurityContext: &v1.LinuxSandboxSecurityContext{NamespaceOptions: o}}
		}
		echoed = &v1.RunPodSandboxRequest{RuntimeHandler: config.GetRuntimeHandler(), Config: head}
	case *v1.ContainerConfig:
		echoed = &v1.ContainerConfig{Metadata: config.GetMetadata(), Image: config.GetImage(), Annotations: config.GetAnnotations(), Mounts: config.GetMounts()}
	}
	rest = proto.Clone(config)
	cut(rest)
	return echoed, rest
}

// cut removes the echoed part from a config.
func cut(config proto.Message) {
	switch config := config.(type) {
	case *v1.RunPodSandboxRequest:
		config.RuntimeHandler = ""
		if config.Config != nil {
			config.Config.Metadata, config.Config.Annotations = nil, nil
		}
		if sc := config.GetConfig().GetLinux().GetSecurityContext(); sc != nil {
			sc.NamespaceOptions = nil
		}
	case *v1.ContainerConfig:
		config.Metadata, config.Image, config.Annotations, config.Mounts = nil, nil, nil, nil
	}
}

// encode frames version, sum, the echoed part and the rest of the config, each after its length,
// and found.
func (r record[T]) encode() ([]byte, error) {
	b := append([]byte{recordVersion}, r.Sum[:]...)
	echoed, rest := splitConfig(r.Config)
	for _, m := range []proto.Message{echoed, rest} {
		part, err := proto.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("encode record: %w", err)
		}
		b = append(binary.AppendUvarint(b, uint64(len(part))), part...)
	}
	if r.Found == nil {
		return b, nil
	}
	b, err := (proto.MarshalOptions{}).MarshalAppend(b, r.Found)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return b, nil
}

// want says how much of a record is decoded.
type want int

const (
	wantEchoed want = iota // the echoed part of the config
	wantHead               // and the results of the create
	wantWhole              // and the rest of the config
)

// decode reads data of encode into r; r.Config must be set. DataLoss if data is not valid.
func (r *record[T]) decode(data []byte, w want) error {
	p, err := split(data)
	if err != nil {
		return err
	}
	r.Sum, r.Found = [sha256.Size]byte(data[1:]), &v1.ContainerStatus{}
	err = proto.Unmarshal(p.echoed, r.Config)
	if err == nil && w >= wantHead {
		err = proto.Unmarshal(p.found, r.Found)
	}
	if err == nil && w >= wantWhole && p.rest != nil {
		echoed := proto.Clone(r.Config)
		err = proto.Unmarshal(p.rest, r.Config)
		cut(r.Config) // it should be empty, but nobody has checked that
		proto.Merge(r.Config, echoed)
	}
	if err != nil {
		return fmt.Errorf("decode record: %w: %w", err, errdefs.ErrDataLoss)
	}
	return nil
}

// parts are the parts of an encoded record.
type parts struct{ echoed, rest, found []byte }

// split splits a record into its parts; DataLoss when it is none.
func split(data []byte) (p parts, err error) {
	if len(data) < 1+sha256.Size || data[0] < 1 || data[0] > recordVersion {
		return p, fmt.Errorf("decode record: %d bytes of an unknown form: %w", len(data), errdefs.ErrDataLoss)
	}
	lengths := []*[]byte{&p.echoed, &p.rest}[:data[0]] // version 1 has no rest
	p.found = data[1+sha256.Size:]
	for _, part := range lengths {
		n, w := binary.Uvarint(p.found)
		if w <= 0 || n > uint64(len(p.found)-w) {
			return p, fmt.Errorf("decode record: cut off: %w", errdefs.ErrDataLoss)
		}
		*part, p.found = p.found[w:w+int(n)], p.found[w+int(n):]
	}
	return p, nil
}

func newPodRecord(req *v1.RunPodSandboxRequest) (podRecord, error) {
	sum, err := sumOf(req)
	if err != nil {
		return podRecord{}, err
	}
	kept := proto.CloneOf(req)
	if kept.GetConfig() != nil {
		kept.Config.Labels = nil
	}
	return podRecord{Sum: sum, Config: kept}, nil
}

func newContainerRecord(req *v1.CreateContainerRequest) (containerRecord, error) {
	sum, err := sumOf(req.GetConfig(), &v1.PodSandboxConfig{LogDirectory: req.GetSandboxConfig().GetLogDirectory()})
	if err != nil {
		return containerRecord{}, err
	}
	kept := proto.CloneOf(req.GetConfig())
	kept.Labels = nil
	if kept.GetImage() != nil {
		// Image answers have no handler, and kubelet compares with them.
		kept.Image.RuntimeHandler = ""
	}
	for _, e := range kept.GetEnvs() {
		e.Value = nil
	}
	return containerRecord{Sum: sum, Config: kept, Found: &v1.ContainerStatus{}}, nil
}

// podOf is the record of a sandbox with its labels put back.
func podOf(sb *core.Sandbox) (podRecord, error) {
	r, err := readPod(sb, wantWhole)
	r.Config.Config.Labels = maps.Clone(sb.Labels)
	return r, err
}

// podHead is podOf with only the echoed part. The labels are the sandbox's own.
func podHead(sb *core.Sandbox) (podRecord, error) {
	r, err := readPod(sb, wantEchoed)
	r.Config.Config.Labels = sb.Labels
	return r, err
}

func readPod(sb *core.Sandbox, w want) (podRecord, error) {
	r := podRecord{Config: &v1.RunPodSandboxRequest{}}
	err := r.decode(sb.Data, w)
	if r.Config.Config == nil {
		r.Config.Config = &v1.PodSandboxConfig{}
	}
	if err != nil {
		return r, fmt.Errorf("sandbox %s: %w", sb.ID, err)
	}
	return r, nil
}

// containerOf is the record of a container with its labels put back.
func containerOf(c *core.Container) (containerRecord, error) {
	r, err := readContainer(c, wantWhole)
	r.Config.Labels = maps.Clone(c.Labels)
	return r, err
}

// containerHead is containerOf with only the echoed part. The labels are the container's own.
func containerHead(c *core.Container) (containerRecord, error) {
	r, err := readContainer(c, wantHead)
	r.Config.Labels = c.Labels
	return r, err
}

// containerNames is containerHead for figures, without the results of the create.
func containerNames(c *core.Container) (containerRecord, error) {
	r, err := readContainer(c, wantEchoed)
	r.Config.Labels = c.Labels
	return r, err
}

func readContainer(c *core.Container, w want) (containerRecord, error) {
	r := containerRecord{Config: &v1.ContainerConfig{}}
	if err := r.decode(c.Data, w); err != nil {
		return r, fmt.Errorf("container %s: %w", c.ID, err)
	}
	return r, nil
}

// sameSum reports whether two records are of equal requests.
func sameSum(a, b []byte) bool {
	const n = 1 + sha256.Size // the version may differ: an agent before this one may have written one
	return len(a) >= n && len(b) >= n && string(a[1:n]) == string(b[1:n])
}
