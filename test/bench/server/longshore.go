package server

import (
	"fmt"
	"path/filepath"

	"github.com/longshore/longshore/test/bench/machine"
)

func (s *Server) longshore(o Options) error {
	bin, err := filepath.Abs(o.Bin)
	if err != nil {
		return err
	}
	s.Bin, s.Socket = bin, filepath.Join(s.State, "cri.sock")
	s.config = filepath.Join(o.Dir, "config.toml")
	s.argv = []string{filepath.Join(bin, "longshore"), "agent", "--config", s.config, "--root", filepath.Join(o.Dir, "root"), "--state", s.State}
	return write(s.config, fmt.Sprintf("[network]\nmode = \"builtin\"\n[engine]\ncgroup_root = %q\n%s", machine.Pods(), o.Config))
}

func (s *Server) longshoreCrun(o Options) error {
	o.Config = fmt.Sprintf("runtime = \"crun\"\n[runtimes.crun]\npath = %q\n%s", o.Peers.Crun, o.Config)
	return s.longshore(o)
}
