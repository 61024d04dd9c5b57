# The bases are arguments, so that a mirror or a local root takes their place: `--build-arg BUILD_BASE=… --build-arg RUN_BASE=…`.
ARG BUILD_BASE=rust:1.95.0-bookworm
ARG RUN_BASE=gcr.io/distroless/cc-debian12:nonroot
# How it is compiled: `dist` is what is shipped, `up` is optimised less.
ARG PROFILE=dist

FROM ${BUILD_BASE} AS build
ARG PROFILE
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --profile ${PROFILE} --locked -p warp && cp target/${PROFILE}/warp /warp

# glibc, not static musl: NVML is loaded at run time, and it needs a dynamic loader.
FROM ${RUN_BASE}
COPY --from=build /warp /usr/local/bin/warp
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/warp"]
