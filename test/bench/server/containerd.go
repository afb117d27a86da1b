package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/longshore/longshore/test/bench/machine"
)

// containerd has its defaults but for: crun as runtime, as the other peer has it;
// the directories; and no lower OOM scores, which this machine may forbid.
const containerdConfig = `version = 3
root = %[1]q
state = %[2]q
imports = []
[grpc]
address = %[3]q
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = %[4]q
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = 'crun'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.crun]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.crun.options]
BinaryName = %[5]q
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = [%[6]q]
conf_dir = %[7]q
[plugins.'io.containerd.internal.v1.opt']
path = %[8]q
`

func (s *Server) containerd(o Options) error {
	p := o.Peers
	if p.Crun == "" || p.CNI == "" {
		return errors.New("containerd needs crun and the CNI plugins")
	}
	s.Socket = filepath.Join(s.State, "containerd.sock")
	config, cni := filepath.Join(o.Dir, "config.toml"), filepath.Join(o.Dir, "cni")
	s.argv = []string{p.Containerd, "--config", config}
	s.setenv("PATH=" + filepath.Dir(p.Containerd) + ":" + os.Getenv("PATH")) // for its shim
	return errors.Join(
		machine.HideUnified(),
		write(filepath.Join(cni, "10-bench.conflist"), conflist),
		write(config, fmt.Sprintf(containerdConfig, filepath.Join(o.Dir, "root"), s.State, s.Socket, o.Images.Pause, p.Crun, p.CNI, cni, filepath.Join(o.Dir, "opt"))),
	)
}

// conflist is the network that both peers' documents begin with: a bridge with
// masquerading, and host ports. Ours is of the same shape.
const conflist = `{"cniVersion": "1.0.0", "name": "bench", "plugins": [
 {"type": "bridge", "bridge": "bench0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}
]}
`
