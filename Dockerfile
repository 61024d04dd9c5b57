# glibc, not static musl: NVML is loaded at run time, and it needs a dynamic loader.
FROM rust:1.95.0-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --profile dist --locked -p warp && cp target/dist/warp /warp

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /warp /usr/local/bin/warp
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/warp"]
