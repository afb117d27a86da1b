package dockerclients

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/moby"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/network"

	"github.com/longshore/longshore/internal/roottest"
)

// TestPrometheus has Prometheus' discovery find a container by the read socket, and lose it.
func TestPrometheus(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := start(t)
		t.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
		ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
		defer cancel()
		found := discover(ctx, t, "unix://"+r.ReadSocket)
		site, err := network.New(ctx, network.WithLabels(map[string]string{"net.of": "site"}))
		if err != nil {
			t.Fatal(err)
		}
		c, err := testcontainers.Run(ctx, "busybox", testcontainers.WithCmd("httpd", "-f"), testcontainers.WithName("scraped"),
			testcontainers.WithExposedPorts("9100/tcp"), testcontainers.WithLabels(map[string]string{"com.example/job": "node"}), network.WithNetwork(nil, site))
		if err != nil {
			t.Fatal(err)
		}
		state, err := c.Inspect(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ip := state.NetworkSettings.Networks[site.Name].IPAddress.String()
		port, err := c.MappedPort(ctx, "9100/tcp")
		if err != nil {
			t.Fatal(err)
		}
		want := model.LabelSet{
			"__address__": model.LabelValue(ip + ":9100"), "__meta_docker_container_id": model.LabelValue(c.GetContainerID()), "__meta_docker_container_name": "/scraped",
			"__meta_docker_container_image": "busybox", "__meta_docker_container_network_mode": "bridge", "__meta_docker_container_label_com_example_job": "node",
			"__meta_docker_network_name": model.LabelValue(site.Name), "__meta_docker_network_id": model.LabelValue(site.ID), "__meta_docker_network_label_net_of": "site",
			"__meta_docker_network_scope": "local", "__meta_docker_network_internal": "false", "__meta_docker_network_ingress": "false", "__meta_docker_network_ip": model.LabelValue(ip),
			"__meta_docker_port_private": "9100", "__meta_docker_port_public": model.LabelValue(port.Port()), "__meta_docker_port_public_ip": "0.0.0.0",
		}
		targets := found(func(all []model.LabelSet) bool { return len(all) > 0 })
		matched := false
		for _, got := range targets {
			same := true
			for name, value := range want {
				same = same && got[name] == value
			}
			matched = matched || same
		}
		if !matched {
			t.Errorf("targets %v, want one with %v", targets, want)
		}
		if err := c.Terminate(ctx, testcontainers.StopTimeout(0)); err != nil {
			t.Fatal(err)
		}
		found(func(all []model.LabelSet) bool { return len(all) == 0 })
		if err := site.Remove(ctx); err != nil {
			t.Error(err)
		}
		r.Check()
	})
}

// discover runs Prometheus' discovery. The function that it returns waits for targets that pass.
func discover(ctx context.Context, t *testing.T, host string) func(pass func([]model.LabelSet) bool) []model.LabelSet {
	t.Helper()
	config := moby.DefaultDockerSDConfig
	config.Host, config.RefreshInterval = host, model.Duration(200*time.Millisecond)
	registry := prometheus.NewRegistry()
	d, err := config.NewDiscoverer(discovery.DiscovererOptions{
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), SetName: "node",
		Metrics: config.NewDiscovererMetrics(registry, discovery.NewRefreshMetrics(registry)),
	})
	if err != nil {
		t.Fatal(err)
	}
	groups := make(chan []*targetgroup.Group)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.Run(ctx, groups)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return func(pass func([]model.LabelSet) bool) []model.LabelSet {
		t.Helper()
		for {
			select {
			case list := <-groups:
				var all []model.LabelSet
				for _, g := range list {
					all = append(all, g.Targets...)
				}
				if pass(all) {
					return all
				}
			case <-ctx.Done():
				t.Fatal("Prometheus does not find the targets")
			}
		}
	}
}
