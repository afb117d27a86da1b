job "sum" {
  type = "batch"

  group "sum" {
    task "sum" {
      driver = "longshore"
      user   = "nobody"

      config {
        image   = "docker.io/library/busybox:1.37"
        command = "sh"
        args    = ["-c", "seq 1 1000 | sha256sum > /alloc/data/sum"]
      }

      resources {
        cpu        = 100
        memory     = 16
        memory_max = 64
      }
    }
  }
}
