package enginetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/keeper/keepertest"
	"github.com/longshore/longshore/internal/network/networktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSupervisorKeepsTheContract(t *testing.T) {
	keepertest.Run(t, func(t *testing.T) keepertest.Harness {
		t.Helper()
		s := enginetest.Fakes(t).Supervisor
		return keepertest.Harness{
			Supervisor: s,
			Start: func(ctx context.Context, ref core.Ref, p keepertest.Program, stdio core.IO, attach *core.StreamOptions) (core.Launched, error) {
				return s.Start(ctx, ref, program(p), stdio, attach)
			},
		}
	})
}

func program(p keepertest.Program) enginetest.Program {
	return func(proc *enginetest.Process) int {
		_, _ = io.WriteString(proc.Stdout(), p.Stdout)
		_, _ = io.WriteString(proc.Stderr(), p.Stderr)
		if p.Echo {
			_, _ = io.Copy(proc.Stdout(), proc.Stdin)
		}
		if p.Wait {
			<-proc.Killed
		}
		return p.Code
	}
}

func TestNetworkKeepsTheContract(t *testing.T) {
	networktest.Contract(t, func(t *testing.T) networktest.Subject {
		t.Helper()
		return networktest.Subject{
			Network: enginetest.Fakes(t).Network, Ports: true, Ranges: true, Further: enginetest.FurtherNetworks(),
			Namespace: func(t *testing.T) string { t.Helper(); return filepath.Join(t.TempDir(), "netns") },
		}
	})
}

func TestOverlaysKeepTheContract(t *testing.T) {
	networktest.OverlayContract(t, func(t *testing.T) networktest.OverlaySubject {
		t.Helper()
		f := enginetest.Fakes(t)
		s := networktest.OverlaySubject{
			Overlays: f.Overlays, Local: netip.MustParseAddr("192.0.2.1"),
			Subject: networktest.Subject{Network: f.Network, Namespace: func(t *testing.T) string { t.Helper(); return filepath.Join(t.TempDir(), "netns") }},
		}
		s.Restart = func(t *testing.T, live ...core.NetworkRequest) networktest.OverlaySubject {
			t.Helper()
			if err := f.Network.Recover(t.Context(), live); err != nil {
				t.Fatal(err)
			}
			return s
		}
		return s
	})
}

func TestTheIngressKeepsTheContract(t *testing.T) {
	networktest.Ingress(t, func(t *testing.T) networktest.IngressSubject {
		t.Helper()
		o := enginetest.Fakes(t).Overlays
		s := networktest.IngressSubject{Overlays: o}
		for i, def := range []*core.Overlay{&s.Overlay, &s.Other} {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24)
			*def = core.Overlay{
				Name: fmt.Sprint("published", i), MTU: 1450, Local: netip.MustParseAddr("192.0.2.1"),
				Subnets: []core.OverlaySubnet{{Range: p, Gateway: p.Addr().Next(), VNI: uint32(4096 + i)}},
			}
			if err := o.Open(t.Context(), *def); err != nil {
				t.Fatal(err)
			}
		}
		s.Take = func(_ *testing.T, proto string, port uint16) func() {
			o.Take(proto, port, errors.New("somebody has it"))
			return func() { o.Take(proto, port, nil) }
		}
		s.Led = func(_ *testing.T, proto string, port uint16) bool {
			_, led := o.Published()
			return slices.ContainsFunc(led, func(p core.PublishedPort) bool { return p.Proto == proto && p.Port == port })
		}
		return s
	})
}

func TestImagesKeepTheContract(t *testing.T) {
	imagetest.Suite(t, func(t *testing.T) imagetest.Harness {
		t.Helper()
		s := enginetest.Fakes(t).Images
		return imagetest.Harness{Images: s, Provide: func(repo, tag string, b imagetest.Built) string {
			name := "registry.test/" + repo + ":" + tag
			var cfg ocispec.Image
			if err := json.Unmarshal(b.Blobs[b.ID], &cfg); err != nil {
				t.Fatal(err)
			}
			var docker struct {
				Config struct {
					Healthcheck *core.HealthCheck
					Shell       []string
				}
			}
			if err := json.Unmarshal(b.Blobs[b.ID], &docker); err != nil {
				t.Fatal(err)
			}
			s.OfferAs(name, core.Image{ID: b.ID, Digest: b.Manifest.Digest, Config: cfg, Health: docker.Config.Healthcheck, Shell: docker.Config.Shell})
			return name
		}}
	})
}
