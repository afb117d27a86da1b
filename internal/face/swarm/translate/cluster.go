package translate

import (
	"path"

	"github.com/opencontainers/runtime-spec/specs-go"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// attachment finds the cluster volume that the managers have chosen for a mount: a mount
// names a volume or a group of them.
func (a *Task) attachment(m *swarmv1.Mount) (*swarmv1.VolumeAttachment, error) {
	for _, v := range a.Swarm.GetVolumes() {
		if v.GetSource() == m.GetSource() && v.GetTarget() == m.GetTarget() && v.GetId() != "" {
			return v, nil
		}
	}
	return nil, invalid.Errorf("mount at %s: the managers have chosen no cluster volume for %q", m.GetTarget(), m.GetSource())
}

// ClusterVolumes are the ids of those that the task mounts.
func (a *Task) ClusterVolumes() (ids []string) {
	for _, m := range a.mounts {
		if m.GetType() != swarmv1.Mount_CLUSTER {
			continue
		}
		if v, err := a.attachment(m); err == nil { // Read has refused others
			ids = append(ids, v.GetId())
		}
	}
	return ids
}

// clusterMounts are the mounts of cluster volumes; dirs has the volumes' directories by id.
func (a *Task) clusterMounts(dirs map[string]string) (list []specs.Mount, err error) {
	for _, m := range a.mounts {
		if m.GetType() != swarmv1.Mount_CLUSTER {
			continue
		}
		v, err := a.attachment(m)
		if err != nil {
			return nil, err
		}
		bind, err := ocispec.Bind{Source: dirs[v.GetId()], Target: path.Clean(m.GetTarget()), ReadOnly: m.GetReadonly()}.Mount()
		if err != nil {
			return nil, err
		}
		list = append(list, bind)
	}
	return list, nil
}
