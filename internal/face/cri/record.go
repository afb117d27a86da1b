package cri

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/longshore/longshore/internal/core"
)

// What this face keeps in an object's Data: the config as it came, for status
// answers to echo, without labels (they are the object's own) and without the
// values of environment variables (they are nobody's business once the spec is
// made). The sum of the whole request tells a client's retry from another
// request of the same name.
type record[T proto.Message] struct {
	Sum    [sha256.Size]byte
	Config T
	// Found is what creating the container found out: image, image_ref,
	// image_id, user, and the resources as last updated. Empty for a sandbox.
	Found *v1.ContainerStatus
}

const recordVersion = 1

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

// encode frames version, sum, length of the config, config, found.
func (r record[T]) encode() ([]byte, error) {
	cfg, err := proto.Marshal(r.Config)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	b := append([]byte{recordVersion}, r.Sum[:]...)
	b = binary.AppendUvarint(b, uint64(len(cfg)))
	b = append(b, cfg...)
	if r.Found != nil {
		if b, err = (proto.MarshalOptions{}).MarshalAppend(b, r.Found); err != nil {
			return nil, fmt.Errorf("encode record: %w", err)
		}
	}
	return b, nil
}

// decode reads what encode wrote into r, whose Config must be there. DataLoss
// when data is something else.
func (r *record[T]) decode(data []byte) error {
	cfg, found, err := split(data)
	if err != nil {
		return err
	}
	r.Sum = [sha256.Size]byte(data[1:])
	if err := proto.Unmarshal(cfg, r.Config); err != nil {
		return fmt.Errorf("decode record: config: %w: %w", err, errdefs.ErrDataLoss)
	}
	r.Found = &v1.ContainerStatus{}
	if err := proto.Unmarshal(found, r.Found); err != nil {
		return fmt.Errorf("decode record: found: %w: %w", err, errdefs.ErrDataLoss)
	}
	return nil
}

// split is what encode put together; DataLoss when data is something else.
func split(data []byte) (cfg, found []byte, err error) {
	if len(data) < 1+sha256.Size || data[0] != recordVersion {
		return nil, nil, fmt.Errorf("decode record: %d bytes of an unknown form: %w", len(data), errdefs.ErrDataLoss)
	}
	data = data[1+sha256.Size:]
	n, w := binary.Uvarint(data)
	if w <= 0 || n > uint64(len(data)-w) {
		return nil, nil, fmt.Errorf("decode record: cut off: %w", errdefs.ErrDataLoss)
	}
	return data[w : w+int(n)], data[w+int(n):], nil
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
		// Images are told without a handler, and kubelet looks for this one there.
		kept.Image.RuntimeHandler = ""
	}
	for _, e := range kept.GetEnvs() {
		e.Value = nil
	}
	return containerRecord{Sum: sum, Config: kept, Found: &v1.ContainerStatus{}}, nil
}

// podOf is the record of a sandbox with its labels put back.
func podOf(sb core.Sandbox) (podRecord, error) {
	r := podRecord{Config: &v1.RunPodSandboxRequest{}}
	if err := r.decode(sb.Data); err != nil {
		return r, fmt.Errorf("sandbox %s: %w", sb.ID, err)
	}
	if r.Config.Config == nil {
		r.Config.Config = &v1.PodSandboxConfig{}
	}
	r.Config.Config.Labels = maps.Clone(sb.Labels)
	return r, nil
}

// containerOf is the record of a container with its labels put back.
func containerOf(c core.Container) (containerRecord, error) {
	r := containerRecord{Config: &v1.ContainerConfig{}}
	if err := r.decode(c.Data); err != nil {
		return r, fmt.Errorf("container %s: %w", c.ID, err)
	}
	r.Config.Labels = maps.Clone(c.Labels)
	return r, nil
}

// sameSum reports whether two records are of equal requests.
func sameSum(a, b []byte) bool {
	n := 1 + sha256.Size
	return len(a) >= n && len(b) >= n && string(a[:n]) == string(b[:n])
}
