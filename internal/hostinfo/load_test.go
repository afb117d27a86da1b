package hostinfo

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReadLoad(t *testing.T) {
	proc, disk := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"stat":            "cpu  10 1 9 70 5 1 2 2 7 0\ncpu0 5 0 5 35 0 0 0 0 0 0\ncpu1 5 1 4 35 5 1 2 2 7 0\nintr 1\n",
		"meminfo":         "MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable: 400 kB\nSwapTotal: 8 kB\nSwapFree: 2 kB\nHugePages_Total: 0\n",
		"loadavg":         "1.50 0.5 0.2 1/100 4\n",
		"pressure/cpu":    "some avg10=2.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.25 avg60=0 avg300=0 total=0\n",
		"pressure/memory": "nothing",
	} {
		path := filepath.Join(proc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l := readLoad(proc, []string{disk, filepath.Join(disk, "gone"), proc})
	if l.Busy != 25 || l.Total != 100 || l.CPUs != 2 {
		t.Errorf("cpu: %d of %d, %d processors", l.Busy, l.Total, l.CPUs)
	}
	if !l.MemoryOK || l.MemoryTotal != 1000<<10 || l.MemoryAvailable != 400<<10 || l.SwapTotal != 8<<10 || l.SwapFree != 2<<10 {
		t.Errorf("memory: %+v", l)
	}
	if !l.AverageOK || l.Average != 1.5 {
		t.Errorf("load: %v", l.Average)
	}
	if len(l.Pressure) != 1 || l.Pressure[0] != (Pressure{"cpu", 2.5, 0.25}) {
		t.Errorf("pressure: %+v", l.Pressure)
	}
	if len(l.Disks) != 1 || len(l.Disks[0].Paths) != 2 || l.Disks[0].Total == 0 {
		t.Errorf("disks: %+v", l.Disks)
	}
	if l := readLoad(filepath.Join(proc, "gone"), nil); l.MemoryOK || l.AverageOK || l.Total != 0 || l.Pressure != nil {
		t.Errorf("without files: %+v", l)
	}
}
