package cni_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/cni"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

const debianPlugins = "/usr/lib/cni"

func TestPluginsKeepTheContractOfDrivers(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if _, err := os.Stat(filepath.Join(debianPlugins, "bridge")); err != nil {
			t.Skipf("no CNI plugins here: %v", err)
		}
		networktest.DriverContract(t, func(t *testing.T) networktest.DriverSubject {
			conf, state, store := t.TempDir(), t.TempDir(), &networktest.KV{}
			list := `{"cniVersion": "1.0.0", "name": "plain", "plugins": [{"type": "bridge", "bridge": "cni9", "isGateway": true,
				"ipam": {"type": "host-local", "dataDir": "` + t.TempDir() + `", "ranges": [[{"subnet": "10.69.0.0/24"}]]}}]}`
			if err := os.WriteFile(filepath.Join(conf, "10-plain.conflist"), []byte(list), 0o600); err != nil {
				t.Fatal(err)
			}
			open := func(*testing.T) networktest.Driver {
				return cni.New(netconf.CNIConfig{ConfDir: conf, BinDirs: []string{debianPlugins}}, state, store, slog.New(slog.DiscardHandler))
			}
			return networktest.DriverSubject{
				Driver: open(t), Network: "plain", Restart: open,
				Attachment: func(int) core.Attachment { return core.Attachment{Network: "plain", Interface: "eth0"} },
			}
		})
	})
}
