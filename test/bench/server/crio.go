package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/longshore/longshore/test/bench/machine"
)

// CRI-O has its defaults but for: crun by its path, beside conmon; the
// directories; cgroupfs, for there is no systemd here; and no NRI socket.
const crioConfig = `[crio]
root = %[1]q
runroot = "/run/containers/storage"
storage_driver = "overlay"
log_dir = "/run/crio/log"
version_file = "/run/crio/version"
clean_shutdown_file = %[2]q
[crio.api]
listen = %[3]q
[crio.runtime]
default_runtime = "crun"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = %[4]q
[crio.runtime.runtimes.crun]
runtime_path = %[5]q
runtime_root = "/run/crun"
monitor_path = %[6]q
monitor_cgroup = "pod"
[crio.image]
pause_image = %[7]q
pause_command = "/pause"
signature_policy = %[8]q
insecure_registries = [%[9]q]
[crio.network]
network_dir = %[10]q
plugin_dirs = [%[11]q]
[crio.nri]
enable_nri = false
`

const (
	trustAll   = `{"default": [{"type": "insecureAcceptAnything"}]}` + "\n"
	plainHTTP  = "[[registry]]\nlocation = %q\ninsecure = true\n"
	registries = ".config/containers/registries.conf"
)

func (s *Server) crio(o Options) error {
	p := o.Peers
	if p.Crun == "" || p.Conmon == "" || p.CNI == "" {
		return errors.New("CRI-O needs crun, conmon and the CNI plugins")
	}
	s.Socket = filepath.Join(s.State, "crio.sock")
	config, cni, policy := filepath.Join(o.Dir, "crio.conf"), filepath.Join(o.Dir, "cni"), filepath.Join(o.Dir, "policy.json")
	s.argv = []string{p.CRIO, "--config", config, "--config-dir", filepath.Join(o.Dir, "none")}
	s.setenv("HOME="+o.Dir, "PATH="+filepath.Dir(p.CRIO)+":"+os.Getenv("PATH"))
	return errors.Join(
		machine.HideUnified(),
		write(filepath.Join(cni, "10-bench.conflist"), conflist),
		write(policy, trustAll),
		write(filepath.Join(o.Dir, registries), fmt.Sprintf(plainHTTP, o.Images.Host)),
		write(config, fmt.Sprintf(crioConfig, filepath.Join(o.Dir, "root"), filepath.Join(o.Dir, "clean.shutdown"), s.Socket,
			filepath.Join(filepath.Dir(p.CRIO), "pinns"), p.Crun, p.Conmon, o.Images.Pause, policy, o.Images.Host, cni, p.CNI)),
	)
}
